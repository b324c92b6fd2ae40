// Judges histories by porcupine, a checker of linearizability that others wrote.
//
// Each line of its input is a history as export.py writes it: a list of objects, each a lock or
// a fenced register, with all operations of it. Each line of its output has the verdicts on one.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"time"

	"github.com/anishathalye/porcupine"
)

// Operation is one operation of one client. Instants are nanoseconds.
type Operation struct {
	Client int    `json:"client"`
	What   string `json:"what"`
	Call   int64  `json:"call"`
	Return *int64 `json:"return"` // null: nobody knows when, or whether, it took effect
	Shared bool   `json:"shared"`
	Lease  string `json:"lease"`
	Value  *int64 `json:"value"`
	Token  int64  `json:"token"`
	End    string `json:"end"`
}

// Object is a lock or a register.
type Object struct {
	Name       string      `json:"name"`
	Model      string      `json:"model"`
	Operations []Operation `json:"operations"`
}

// History is one run.
type History struct {
	Name    string   `json:"history"`
	Objects []Object `json:"objects"`
}

// Finding is the verdict on one object: "Ok", "Illegal" or "Unknown".
type Finding struct {
	Name   string                `json:"name"`
	Model  string                `json:"model"`
	Result porcupine.CheckResult `json:"result"`
}

// Verdict is what is said of one history.
type Verdict struct {
	History string    `json:"history"`
	Objects []Finding `json:"objects"`
}

// lock has one holder, or only readers.
type lock struct {
	holder  string
	readers int
}

var locks = porcupine.Model{
	Init: func() any { return lock{} },
	Step: func(state, input, _ any) (bool, any) {
		now, one := state.(lock), input.(Operation)
		switch {
		case one.What == "acquire" && one.Shared:
			return now.holder == "", lock{readers: now.readers + 1}
		case one.What == "acquire":
			return now == lock{}, lock{holder: one.Lease}
		case one.Shared:
			return now.readers > 0, lock{readers: now.readers - 1}
		default:
			return now.holder == one.Lease, lock{}
		}
	},
}

// register refuses each write with a lower token than the highest that it has seen.
type register struct {
	written bool
	value   int64
	token   int64
}

var registers = porcupine.Model{
	Init: func() any { return register{} },
	Step: func(state, input, _ any) (bool, any) {
		now, one := state.(register), input.(Operation)
		passes := one.Token >= now.token
		switch {
		case one.What == "read" && one.Value == nil:
			return !now.written && one.Token == now.token, now
		case one.What == "read":
			return now.written && *one.Value == now.value && one.Token == now.token, now
		case one.End == "fail":
			return !passes, now
		case passes && one.Value == nil:
			return true, register{token: one.Token}
		case passes:
			return true, register{written: true, value: *one.Value, token: one.Token}
		default: // it was refused, and its client does not know
			return one.End == "info", now
		}
	},
}

func judge(object Object, most time.Duration) (porcupine.CheckResult, error) {
	model, known := map[string]porcupine.Model{"lock": locks, "register": registers}[object.Model]
	if !known {
		return porcupine.Unknown, fmt.Errorf("there is no model %q", object.Model)
	}
	history := make([]porcupine.Operation, len(object.Operations))
	for i, one := range object.Operations {
		ends := int64(math.MaxInt64)
		if one.Return != nil {
			ends = *one.Return
		}
		history[i] = porcupine.Operation{ClientId: one.Client, Input: one, Call: one.Call, Return: ends}
	}
	return porcupine.CheckOperationsTimeout(model, history, most), nil
}

func run() error {
	most := flag.Duration("most", time.Minute, "the longest search for one object")
	version := flag.Bool("version", false, "print the version of porcupine, and end")
	flag.Parse()
	if *version {
		info, _ := debug.ReadBuildInfo()
		for _, module := range info.Deps {
			fmt.Println(module.Path, module.Version)
		}
		return nil
	}
	lines := bufio.NewReader(os.Stdin)
	decoder, encoder := json.NewDecoder(lines), json.NewEncoder(os.Stdout)
	for decoder.More() {
		var history History
		if err := decoder.Decode(&history); err != nil {
			return err
		}
		verdict := Verdict{History: history.Name, Objects: []Finding{}}
		for _, object := range history.Objects {
			result, err := judge(object, *most)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", history.Name, object.Name, err)
			}
			verdict.Objects = append(verdict.Objects, Finding{object.Name, object.Model, result})
		}
		if err := encoder.Encode(verdict); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
