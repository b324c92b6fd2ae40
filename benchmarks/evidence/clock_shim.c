/*
 * Another time of day for one process, so that a test can set a server's clock.
 *
 * Preloaded into a server, it adds the offset in the file that CLOCK_SHIM names
 * to what the server is told of the time of day: 8 bytes, microseconds, in the
 * machine's own order. The file is read each time, so that a change acts at
 * once. Clocks that only move forward stay as they are, and nothing here needs
 * memory of its own: an allocator may ask for the time.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { MILLION = 1000000 };

static int offset_file = -1;

__attribute__((constructor)) static void find_the_file(void)
{
    const char *name = getenv("CLOCK_SHIM");

    if (name)
        offset_file = open(name, O_RDONLY | O_CLOEXEC);
}

static int64_t time_of_day(void)
{
    struct timespec real = {0};
    int64_t offset = 0;

    syscall(SYS_clock_gettime, CLOCK_REALTIME, &real);
    if (offset_file < 0 || pread(offset_file, &offset, sizeof offset, 0) != sizeof offset)
        offset = 0;
    return (int64_t)real.tv_sec * MILLION + real.tv_nsec / 1000 + offset;
}

int clock_gettime(clockid_t which, struct timespec *told)
{
    if (which != CLOCK_REALTIME && which != CLOCK_REALTIME_COARSE)
        return (int)syscall(SYS_clock_gettime, which, told);
    int64_t now = time_of_day();
    told->tv_sec = now / MILLION;
    told->tv_nsec = now % MILLION * 1000;
    return 0;
}

int gettimeofday(struct timeval *restrict told, void *restrict zone)
{
    (void)zone;
    int64_t now = time_of_day();
    told->tv_sec = now / MILLION;
    told->tv_usec = now % MILLION;
    return 0;
}

time_t time(time_t *told)
{
    time_t now = time_of_day() / MILLION;

    if (told)
        *told = now;
    return now;
}
