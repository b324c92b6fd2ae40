// A client process of compare.py --go, for the locks of Go: redsync and rueidislock.
//
// `worker LOAD` is what contenders.py is for the locks of Python; LOAD is that of contenders.py.
// If it names a key, all waiters want the lock with this key: the process prints "ready", reads the
// instant at which all processes start, and prints the begin and end of each turn of each waiter, and
// the processor time that it used.
// Without a key it is asked again and again, by a line of JSON with the number of tasks and the
// seconds, to make pairs with a key for each task, and prints what they took. It ends with its
// standard input. `worker --versions` prints the versions of what it was built with.
//
// The locks are used as their documentations show, with the defaults of both, but for the ttl, which
// is that of all contestants:
//   - redsync has a go-redis client for each master. With failFast, which is one of its options, it
//     waits for a quorum of answers only. A release can then overtake the acquisition on a master.
//   - rueidislock has one client, of one server or one cluster: a majority of its keys is not one of
//     independent servers. Here it has one server, so KeyMajority is 1, as its README says, and
//     NoLoopTracking is on, because the server is younger than Redis 7.0.5. TryNextAfter is 1 s
//     instead of 20 ms. It limits a request, and with one key there is no next one to try: a waiter
//     whose request took longer was never woken when nobody else changed the key.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/go-redsync/redsync/v4"
	driver "github.com/go-redsync/redsync/v4/redis"
	pools "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

const (
	ttl  = 10 * time.Second
	work = time.Millisecond
	// The time that cancelled waiters may take to end.
	patience       = 2 * time.Second
	// The time after the measured one in which pairs that have begun may be done.
	mostLate       = 5 * time.Second
	clockMonotonic = 1 // that of Python's time.monotonic on Linux
)

// Load is the work of the process, as contenders.py has it.
type Load struct {
	Contestant string   `json:"contestant"`
	URLs       []string `json:"urls"`
	Key        string   `json:"key"`
	Waiters    int      `json:"waiters"`
	Seconds    float64  `json:"seconds"`
}

// Release releases a lock, or says why it could not.
type Release func() error

// Acquire waits for the lock with this name, and returns what releases it.
type Acquire func(ctx context.Context, name string) (Release, error)

func withRedsync(urls []string, options ...redsync.Option) Acquire {
	masters := make([]driver.Pool, len(urls))
	for number, each := range urls {
		options, err := redis.ParseURL(each)
		must(err)
		masters[number] = pools.NewPool(redis.NewClient(options))
	}
	locks := redsync.New(masters...)
	options = append(options, redsync.WithExpiry(ttl))
	return func(ctx context.Context, name string) (Release, error) {
		mutex := locks.NewMutex(name, options...)
		if err := mutex.LockContext(ctx); err != nil {
			return nil, err
		}
		return func() error {
			if ok, err := mutex.Unlock(); !ok {
				return fmt.Errorf("not released: %w", err)
			}
			return nil
		}, nil
	}
}

func withRueidislock(urls []string) Acquire {
	where, err := url.Parse(urls[0])
	must(err)
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{where.Host}},
		KeyMajority:    1,
		NoLoopTracking: true,
		KeyValidity:    ttl,
		TryNextAfter:   time.Second,
	})
	must(err)
	return func(ctx context.Context, name string) (Release, error) {
		_, release, err := locker.WithContext(ctx, name)
		return func() error { release(); return nil }, err
	}
}

func contestant(load Load) Acquire {
	switch load.Contestant {
	case "redsync":
		return withRedsync(load.URLs)
	case "redsync, failFast":
		return withRedsync(load.URLs, redsync.WithFailFast(true))
	case "rueidislock":
		return withRueidislock(load.URLs)
	}
	panic("no contestant is called " + load.Contestant)
}

// Asked is one measurement of pairs with a key for each task.
type Asked struct {
	Tasks   int     `json:"tasks"`
	Seconds float64 `json:"seconds"`
}

// Answer is what the pairs took: latencies in µs, the rest in seconds.
type Answer struct {
	Pairs  int     `json:"pairs"`
	Failed int     `json:"failed"`
	Took   float64 `json:"took"`
	CPU    float64 `json:"cpu"`
	P50    float64 `json:"p50"`
	P99    float64 `json:"p99"`
}

func serve(acquire Acquire, contestant string) {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var asked Asked
		must(json.Unmarshal(lines.Bytes(), &asked))
		say(measure(acquire, contestant, asked))
	}
}

func measure(acquire Acquire, contestant string, asked Asked) Answer {
	runtime.GC()
	latencies, failed := make([][]time.Duration, asked.Tasks), make([]int, asked.Tasks)
	length := seconds(asked.Seconds)
	// An attempt that would wait for ever is cancelled, and counts as failed.
	ctx, cancel := context.WithCancel(context.Background())
	defer time.AfterFunc(length+mostLate, cancel).Stop()
	began, cpu := time.Now(), usedCPU()
	var tasks sync.WaitGroup
	for number := range asked.Tasks {
		// Keys of its own: with failFast some stay on a minority, until their ttl is over.
		name := fmt.Sprintf("benchmark:%s:%d", contestant, number)
		tasks.Go(func() {
			for before := time.Now(); before.Sub(began) < length; {
				release, err := acquire(ctx, name)
				if err == nil {
					err = release()
				}
				after := time.Now()
				if err == nil {
					latencies[number] = append(latencies[number], after.Sub(before))
				} else {
					failed[number]++
				}
				before = after
			}
		})
	}
	tasks.Wait()
	took, used := time.Since(began), usedCPU()-cpu
	all := slices.Concat(latencies...)
	slices.Sort(all)
	return Answer{
		len(all), sum(failed), took.Seconds(), used.Seconds(), percentile(all, 0.5), percentile(all, 0.99),
	}
}

// percentile returns the time in µs below which a share of the ordered times lie.
func percentile(ordered []time.Duration, share float64) float64 {
	if len(ordered) == 0 {
		return 0
	}
	place := min(int(float64(len(ordered))*share), len(ordered)-1)
	return float64(ordered[place]) / 1e3
}

func sum(numbers []int) (total int) {
	for _, number := range numbers {
		total += number
	}
	return total
}

// usedCPU returns the processor time of this process.
func usedCPU() time.Duration {
	var usage syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// Turns are what the waiters print: the begin and end of each turn of each of them.
type Turns struct {
	Turns  [][][2]float64 `json:"turns"`
	Failed int            `json:"failed"`
	CPU    float64        `json:"cpu"`
}

func contend(acquire Acquire, load Load) {
	var warm sync.WaitGroup
	for number := range load.Waiters {
		warm.Go(func() {
			release, err := acquire(context.Background(), fmt.Sprintf("warm:%d:%d", os.Getpid(), number))
			if err == nil {
				err = release()
			}
			must(err)
		})
	}
	warm.Wait()
	runtime.GC()
	fmt.Println("ready")
	var start float64
	_, err := fmt.Scan(&start)
	must(err)
	began, epoch := time.Now(), monotonic()
	now := func() float64 { return epoch + time.Since(began).Seconds() }
	time.Sleep(seconds(start - epoch))
	cpu := usedCPU()
	ctx, cancel := context.WithCancel(context.Background())
	var mutex sync.Mutex
	var waiters sync.WaitGroup
	found := Turns{Turns: make([][][2]float64, load.Waiters)}
	for number := range load.Waiters {
		found.Turns[number] = [][2]float64{}
		waiters.Go(func() {
			for ctx.Err() == nil {
				release, err := acquire(ctx, load.Key)
				if err != nil {
					mutex.Lock()
					found.Failed++
					mutex.Unlock()
					continue
				}
				begun := now()
				time.Sleep(work)
				ended := now()
				mutex.Lock()
				found.Turns[number] = append(found.Turns[number], [2]float64{begun, ended})
				mutex.Unlock()
				if err := release(); err != nil {
					mutex.Lock()
					found.Failed++
					mutex.Unlock()
				}
			}
		})
	}
	time.Sleep(seconds(start + load.Seconds - now()))
	mutex.Lock()
	failed := found.Failed // those of waiters that are cancelled are none
	found.CPU = (usedCPU() - cpu).Seconds()
	mutex.Unlock()
	cancel()
	over := make(chan struct{})
	go func() {
		waiters.Wait()
		close(over)
	}()
	select {
	case <-over:
	case <-time.After(patience):
	}
	mutex.Lock()
	found.Failed = failed
	say(found)
}

// monotonic returns the time in seconds on the clock of all processes.
func monotonic() float64 {
	var spec syscall.Timespec
	place := uintptr(unsafe.Pointer(&spec))
	if _, _, failed := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, place, 0); failed != 0 {
		panic(failed)
	}
	return float64(spec.Nano()) / 1e9
}

func seconds(number float64) time.Duration {
	return time.Duration(number * 1e9)
}

func say(what any) {
	must(json.NewEncoder(os.Stdout).Encode(what))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// Silent keeps what go-redis says of connections from standard error.
type Silent struct{}

// Printf does nothing.
func (Silent) Printf(context.Context, string, ...any) {}

func versions() map[string]string {
	found := map[string]string{"go": strings.TrimPrefix(runtime.Version(), "go")}
	names := map[string]string{
		"github.com/go-redsync/redsync/v4": "redsync",
		"github.com/redis/go-redis/v9":     "go-redis",
		"github.com/redis/rueidis":         "rueidis",
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if name := names[module.Path]; name != "" {
				found[name] = strings.TrimPrefix(module.Version, "v")
			}
		}
	}
	return found
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: worker LOAD, or worker --versions")
		os.Exit(2)
	}
	if os.Args[1] == "--versions" {
		say(versions())
		return
	}
	redis.SetLogger(Silent{})
	var load Load
	must(json.Unmarshal([]byte(os.Args[1]), &load))
	acquire := contestant(load)
	if load.Key == "" {
		serve(acquire, load.Contestant)
	} else {
		contend(acquire, load)
	}
}
