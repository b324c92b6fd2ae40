// One client process of a run that uses redsync: what worker.py is for the others.
//
// `worker JOB NAME` does the same work by the same files and signals, and writes the same history.
// `worker --versions` prints the versions of what it was built with. `go build -o worker` builds
// it here.
//
// The lock is used as its documentation shows, Lock, Extend and Unlock, and its Until is looked at
// before each write. redsync extends nothing by itself. The clients are those of its README, go-redis,
// which wait 200 ms for a reply and repeat no command, as those of pottery do here, and heed the
// time within which redsync wants a reply. With its defaults one master that hangs would hold up a
// release for four times 3 s.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	random "math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/go-redsync/redsync/v4"
	driver "github.com/go-redsync/redsync/v4/redis"
	pools "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

const (
	masterTimeout = 200 * time.Millisecond
	// Before the end no task begins to wait for a lock within this time.
	leastLeft = 200 * time.Millisecond
	// redsync has a number of attempts instead of a time to wait: 32 by default, which are made
	// 50 to 250 ms apart.
	mostTries  = 32
	retryDelay = 150 * time.Millisecond
	boottime   = 7 // CLOCK_BOOTTIME of Linux
)

// Job is what the process does; see job.py.
type Job struct {
	Folder  string     `json:"folder"`
	URLs    []string   `json:"urls"`
	Store   string     `json:"store"`
	Seed    int64      `json:"seed"`
	TTL     int64      `json:"ttl"`
	Keys    []string   `json:"keys"`
	Tasks   int        `json:"tasks"`
	Wait    int64      `json:"wait"`
	Body    [2]float64 `json:"body"`
	Long    float64    `json:"long"`
	Extends float64    `json:"extend"`
	Checks  bool       `json:"checks"`
}

func (job Job) ttl() time.Duration {
	return time.Duration(job.TTL) * time.Millisecond
}

// now returns the time in ns on the clock of all histories.
func now() int64 {
	var spec syscall.Timespec
	place := uintptr(unsafe.Pointer(&spec))
	if _, _, failed := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, boottime, place, 0); failed != 0 {
		panic(failed)
	}
	return spec.Nano()
}

// Facts are what an event says besides its time, client, number and kind.
type Facts map[string]any

// Operations writes the operations of one task to the history.
type Operations struct {
	file   *os.File
	client string
	number int
}

func (operations *Operations) record(at int64, op int, what, how string, facts Facts) {
	event := Facts{"at": at, "client": operations.client, "op": op, "what": what, "how": how}
	for name, fact := range facts {
		event[name] = fact
	}
	line, err := json.Marshal(event)
	if err != nil {
		panic(err)
	}
	// One write for each line, which outlives a SIGKILL.
	if _, err := operations.file.Write(append(line, '\n')); err != nil {
		panic(err)
	}
}

// invoke records that an operation begins, and returns a function that records its end.
func (operations *Operations) invoke(what string, facts Facts) func(how string, facts Facts) {
	op := operations.number
	operations.number++
	operations.record(now(), op, what, "invoke", facts)
	return func(how string, facts Facts) { operations.record(now(), op, what, how, facts) }
}

func (operations *Operations) observe(at int64, what string, facts Facts) {
	operations.record(at, operations.number, what, "ok", facts)
	operations.number++
}

// Worker has what the tasks have in common.
type Worker struct {
	job     Job
	name    string
	file    *os.File
	store   *redis.Client
	redsync *redsync.Redsync
	until   int64
}

func client(url string, timeout time.Duration) *redis.Client {
	options, err := redis.ParseURL(url)
	if err != nil {
		panic(err)
	}
	if timeout != 0 {
		options.DialTimeout, options.ReadTimeout, options.WriteTimeout = timeout, timeout, timeout
		options.ContextTimeoutEnabled = true
		options.MaxRetries, options.DialerRetries = -1, 1
	}
	return redis.NewClient(options)
}

func open(job Job, name string) *Worker {
	flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL | os.O_APPEND
	file, err := os.OpenFile(filepath.Join(job.Folder, name+".jsonl"), flags, 0o644)
	if err != nil {
		panic(err)
	}
	masters := make([]driver.Pool, 0, len(job.URLs))
	for _, url := range job.URLs {
		masters = append(masters, pools.NewPool(client(url, masterTimeout)))
	}
	return &Worker{job, name, file, client(job.Store, 0), redsync.New(masters...), 0}
}

func (worker *Worker) left() time.Duration {
	return time.Duration(worker.until - now())
}

// getReady waits until a lock can be acquired, says so, and waits for the start.
func (worker *Worker) getReady() {
	mutex := worker.redsync.NewMutex("ready:"+worker.name+":0", redsync.WithExpiry(worker.job.ttl()))
	for ends := now() + int64(time.Minute); mutex.Lock() != nil; {
		if now() > ends {
			panic("no lock can be acquired")
		}
	}
	mutex.Unlock()
	ready := filepath.Join(worker.job.Folder, worker.name+".ready")
	if err := os.WriteFile(ready, nil, 0o644); err != nil {
		panic(err)
	}
	for worker.until == 0 {
		time.Sleep(5 * time.Millisecond)
		text, _ := os.ReadFile(filepath.Join(worker.job.Folder, "until"))
		worker.until, _ = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	}
}

// Task is one client: it does one operation at a time.
type Task struct {
	*Worker
	operations *Operations
	random     *random.Rand
	key        string
}

func (worker *Worker) task(number int) *Task {
	name := fmt.Sprintf("%s/%d", worker.name, number)
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%d %s", worker.job.Seed, name)
	return &Task{
		Worker:     worker,
		operations: &Operations{file: worker.file, client: name},
		random:     random.New(random.NewPCG(hash.Sum64(), 0)),
		key:        worker.job.Keys[number%len(worker.job.Keys)],
	}
}

func (task *Task) uniform(least, most float64) float64 {
	return least + task.random.Float64()*(most-least)
}

func (task *Task) run() {
	for left := task.left(); left > leastLeft; left = task.left() {
		task.acquire(min(task.job.Wait, left.Milliseconds()))
	}
}

func (task *Task) acquire(wait int64) {
	tries := min(mostTries, 1+int(time.Duration(wait)*time.Millisecond/retryDelay))
	mutex := task.redsync.NewMutex(
		task.key, redsync.WithExpiry(task.job.ttl()), redsync.WithTries(tries),
	)
	acquired := task.operations.invoke("acquire", Facts{
		"keys": []string{task.key}, "fair": false, "fencing": false, "ttl": task.job.TTL, "wait": wait,
	})
	if err := mutex.Lock(); err != nil {
		acquired("fail", Facts{"why": why(err)})
		time.Sleep(20 * time.Millisecond)
		return
	}
	bytes := make([]byte, 8)
	rand.Read(bytes)
	section := &Section{Task: task, mutex: mutex, lease: hex.EncodeToString(bytes)}
	acquired("ok", Facts{"lease": section.lease, "until": section.promised(), "token": nil})
	section.run()
}

// Section is what one client does with one lease.
type Section struct {
	*Task
	mutex *redsync.Mutex
	lease string
	over  bool
}

func (section *Section) run() {
	job := section.job
	seconds := section.uniform(job.Body[0], job.Body[1])
	if section.random.Float64() < job.Long {
		seconds = section.uniform(0.3, 0.7) * job.ttl().Seconds()
	}
	extends := section.random.Float64() < job.Extends
	counter, background := "counter:"+section.key, context.Background()
	value, err := section.store.Get(background, counter).Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		panic(err)
	}
	value++
	if section.works(seconds) && (!extends || section.extend()) && section.isValid() {
		added := section.operations.invoke("add", Facts{"key": section.key})
		if err := section.store.Set(background, counter, value, 0).Err(); err != nil {
			panic(err)
		}
		added("ok", Facts{"key": section.key, "value": value})
	}
	released := section.operations.invoke("release", Facts{"lease": section.lease})
	if ok, err := section.mutex.Unlock(); ok {
		released("ok", Facts{"lease": section.lease})
	} else {
		released("fail", Facts{"lease": section.lease, "why": section.why(err)})
	}
}

// promised returns the instant up to which redsync calls the lock valid.
func (section *Section) promised() int64 {
	return max(0, now()+int64(time.Until(section.mutex.Until())))
}

// works waits, and looks at the lock now and then; it returns whether it is valid in the end.
func (section *Section) works(seconds float64) bool {
	ends, most := now()+int64(seconds*1e9), section.job.ttl()/5
	for left := time.Duration(ends - now()); left > 0 && !section.over; left = time.Duration(ends - now()) {
		time.Sleep(min(left, most))
		if section.job.Checks && left > most {
			section.isValid()
		}
	}
	return section.isValid()
}

func (section *Section) isValid() bool {
	if section.over || !section.job.Checks {
		return !section.over
	}
	at, until := now(), section.promised()
	if until <= at {
		section.over = true
		section.operations.observe(at, "lost", Facts{"lease": section.lease, "why": "Until is over"})
		return false
	}
	section.operations.observe(at, "held", Facts{"lease": section.lease, "until": until})
	return true
}

func (section *Section) extend() bool {
	facts := Facts{"lease": section.lease, "ttl": section.job.TTL}
	extended := section.operations.invoke("extend", facts)
	if ok, err := section.mutex.Extend(); !ok {
		// Whoever asks for an extension stops if it fails.
		extended("fail", Facts{"lease": section.lease, "why": section.why(err)})
		return false
	}
	extended("ok", Facts{"lease": section.lease, "until": section.promised()})
	return true
}

// why returns the kind of an error and its text; it is "NotHeld" if a majority says so.
func (section *Section) why(err error) string {
	if gone(err) > len(section.job.URLs)/2 {
		return "NotHeld: " + text(err)
	}
	return why(err)
}

// gone returns how many masters said that the key is gone, or another's.
func gone(err error) int {
	switch err := err.(type) {
	case *redsync.ErrTaken:
		return len(err.Nodes)
	case *redsync.ErrNodeTaken:
		return 1
	case interface{ Unwrap() []error }:
		number := 0
		for _, each := range err.Unwrap() {
			number += gone(each)
		}
		return number
	}
	if err == redsync.ErrLockAlreadyExpired {
		return 1
	}
	return 0
}

func why(err error) string {
	return fmt.Sprintf("%T: ", err) + text(err)
}

func text(err error) string {
	text := strings.ReplaceAll(fmt.Sprint(err), "\n", ", ")
	return text[:min(len(text), 200)]
}

// Silent keeps errors of masters from standard error, which is for what must not happen.
type Silent struct{}

// Printf does nothing.
func (Silent) Printf(context.Context, string, ...any) {}

func versions() map[string]string {
	found := map[string]string{"go": strings.TrimPrefix(runtime.Version(), "go")}
	names := map[string]string{
		"github.com/go-redsync/redsync/v4": "redsync", "github.com/redis/go-redis/v9": "go-redis",
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
	if len(os.Args) == 2 && os.Args[1] == "--versions" {
		json.NewEncoder(os.Stdout).Encode(versions())
		return
	}
	redis.SetLogger(Silent{})
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		panic(err)
	}
	var job Job
	if err := json.Unmarshal(text, &job); err != nil {
		panic(err)
	}
	worker := open(job, os.Args[2])
	worker.getReady()
	var tasks sync.WaitGroup
	for number := range job.Tasks {
		tasks.Go(worker.task(number).run)
	}
	tasks.Wait()
}
