// Package ports chooses ports of the loopback for servers that have to be told theirs.
package ports

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports lie above the range from which Linux takes those of outgoing connections: otherwise some connection could take the
// port of a server before it listens, or while it is down.
const lowest, highest = 61000, 65500

var next = struct {
	sync.Mutex
	port int
}{port: lowest + rand.IntN(highest-lowest)}

// Free gives ports that nobody listens on; no port twice until all were given.
func Free(count int) ([]int, error) {
	next.Lock()
	defer next.Unlock()
	var free []int
	for range highest - lowest + 1 {
		port := next.port
		if next.port++; next.port > highest {
			next.port = lowest
		}
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		listener.Close()
		if free = append(free, port); len(free) == count {
			return free, nil
		}
	}
	return nil, errors.New("not enough free ports between 61000 and 65500")
}
