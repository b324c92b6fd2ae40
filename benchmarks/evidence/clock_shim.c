/*
 * Other clocks for one process: a time of day that is set, clocks that run
 * faster or slower, a machine that was suspended.
 *
 * Preloaded into a process, it changes what that process is told of the time by
 * the table in the file that CLOCK_SHIM names; `clocks.py` writes it. Each clock
 * shows its own time + ahead + rate * (its own time - since), in ns. There are
 * two tables, and a number says which one counts: the other one is written while
 * this one is read, so that a change acts at once and no reader sees half of it.
 *
 * CLOCK_UNCHANGED is one more clock: the machine's own CLOCK_BOOTTIME. Nothing
 * here needs memory of its own: an allocator may ask for the time. A wait for an
 * instant is one for as long as is left to it; only clock_nanosleep knows that,
 * not the waits for locks and conditions.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { BILLION = 1000000000, CLOCK_UNCHANGED = 107 };
enum { TIME_OF_DAY, MONOTONIC, BOOTTIME, CLOCKS };

struct clock {
    int64_t ahead, since;
    double rate;
};

struct file {
    int64_t current;
    struct clock tables[2][CLOCKS];
};

static const volatile struct file *file;

__attribute__((constructor)) static void find_the_file(void)
{
    const char *name = getenv("CLOCK_SHIM");
    int opened = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;

    if (opened < 0)
        return;
    void *mapped = mmap(NULL, sizeof *file, PROT_READ, MAP_SHARED, opened, 0);
    if (mapped != MAP_FAILED)
        file = mapped;
    close(opened);
}

static int changed(clockid_t which)
{
    switch (which) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
        return TIME_OF_DAY;
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_MONOTONIC_RAW:
        return MONOTONIC;
    case CLOCK_BOOTTIME:
        return BOOTTIME;
    default:
        return CLOCKS;
    }
}

static int64_t shown(clockid_t which)
{
    struct timespec own = {0};

    syscall(SYS_clock_gettime, which, &own);
    int64_t now = (int64_t)own.tv_sec * BILLION + own.tv_nsec;
    if (!file)
        return now;
    const volatile struct clock *clock = &file->tables[file->current & 1][changed(which)];
    return now + clock->ahead + (int64_t)(clock->rate * (double)(now - clock->since));
}

int clock_gettime(clockid_t which, struct timespec *told)
{
    if (which == CLOCK_UNCHANGED)
        return (int)syscall(SYS_clock_gettime, CLOCK_BOOTTIME, told);
    if (changed(which) == CLOCKS)
        return (int)syscall(SYS_clock_gettime, which, told);
    int64_t now = shown(which);
    told->tv_sec = now / BILLION;
    told->tv_nsec = now % BILLION;
    return 0;
}

int clock_nanosleep(clockid_t which, int flags, const struct timespec *wanted,
                    struct timespec *left)
{
    struct timespec lasts = *wanted;

    if (flags & TIMER_ABSTIME && changed(which) != CLOCKS) {
        int64_t ns = (int64_t)wanted->tv_sec * BILLION + wanted->tv_nsec - shown(which);
        if (ns <= 0)
            return 0;
        if (file)
            ns /= 1 + file->tables[file->current & 1][changed(which)].rate;
        lasts.tv_sec = ns / BILLION;
        lasts.tv_nsec = ns % BILLION;
        flags &= ~TIMER_ABSTIME;
        left = NULL;
    }
    return syscall(SYS_clock_nanosleep, which, flags, &lasts, left) ? errno : 0;
}

int gettimeofday(struct timeval *restrict told, void *restrict zone)
{
    (void)zone;
    int64_t now = shown(CLOCK_REALTIME);
    told->tv_sec = now / BILLION;
    told->tv_usec = now % BILLION / 1000;
    return 0;
}

time_t time(time_t *told)
{
    time_t now = shown(CLOCK_REALTIME) / BILLION;

    if (told)
        *told = now;
    return now;
}
