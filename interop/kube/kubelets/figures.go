package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// mistakesMax bounds what is kept of mistakes, and samplesMax the latencies of one kind in a window.
const (
	mistakesMax = 100
	samplesMax  = 1 << 20
)

// figures collects counts, latencies and mistakes from all goroutines.
type figures struct {
	mutex    sync.Mutex
	done     map[string]int
	failed   map[string]map[string]int
	watches  map[string]map[string]int
	samples  map[string][]time.Duration
	mistakes []string
	mistaken int
}

func newFigures() *figures {
	return &figures{
		done: map[string]int{}, failed: map[string]map[string]int{}, watches: map[string]map[string]int{},
		samples: map[string][]time.Duration{},
	}
}

// took counts a request or an interval that ended well.
func (f *figures) took(kind string, duration time.Duration) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.done[kind]++
	if len(f.samples[kind]) < samplesMax {
		f.samples[kind] = append(f.samples[kind], duration)
	}
}

// fails counts a request that ended with an error.
func (f *figures) fails(kind string, err error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	count(f.failed, kind, reason(err))
}

// watch counts what happened to the watches of one kind of object: listed, begun, or why one ended.
func (f *figures) watch(what, how string) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	count(f.watches, what, how)
}

// wrong records what a correct store and a correct control plane never show.
func (f *figures) wrong(format string, arguments ...any) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.mistaken++
	if len(f.mistakes) < mistakesMax {
		f.mistakes = append(f.mistakes, fmt.Sprintf(format, arguments...))
	}
}

func (f *figures) begin() {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	clear(f.samples)
}

// summary is of the latencies of one kind, in seconds.
type summary struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
}

func (f *figures) window() map[string]summary {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	answer := map[string]summary{}
	for kind, samples := range f.samples {
		if len(samples) == 0 {
			continue
		}
		sorted := slices.Clone(samples)
		slices.Sort(sorted)
		at := func(percent int) float64 { return sorted[min(len(sorted)-1, len(sorted)*percent/100)].Seconds() }
		answer[kind] = summary{Count: len(sorted), P50: at(50), P99: at(99), Max: sorted[len(sorted)-1].Seconds()}
	}
	return answer
}

func (f *figures) state() map[string]any {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return map[string]any{
		"done": copied(f.done), "failed": copies(f.failed), "watches": copies(f.watches),
		"mistakes": append([]string{}, f.mistakes...), "mistaken": f.mistaken,
	}
}

func count(counts map[string]map[string]int, kind, how string) {
	if counts[kind] == nil {
		counts[kind] = map[string]int{}
	}
	counts[kind][how]++
}

func copied(counts map[string]int) map[string]int {
	answer := make(map[string]int, len(counts))
	for kind, n := range counts {
		answer[kind] = n
	}
	return answer
}

func copies(counts map[string]map[string]int) map[string]map[string]int {
	answer := make(map[string]map[string]int, len(counts))
	for kind, inner := range counts {
		answer[kind] = copied(inner)
	}
	return answer
}

// reason is an error without what differs each time: addresses, names and numbers.
func reason(err error) string {
	text := err.Error()
	for _, known := range []string{
		"connection refused", "connection reset", "error reading from server", "EOF", "context deadline exceeded", "etcdserver: leader changed",
		"etcdserver: request timed out", "etcdserver: no leader", "http2: client connection lost", "the object has been modified",
		"already exists", "not found", "error trying to reach service", "transport is closing", "apiserver is shutting down",
		"i/o timeout", "unable to return a response in the time allotted", "TLS handshake timeout",
	} {
		if strings.Contains(text, known) {
			return known
		}
	}
	if len(text) > 120 {
		text = text[:120]
	}
	return text
}
