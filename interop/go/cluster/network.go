package cluster

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Network is the proxies between the members, and observers. Every rule is about one
// direction, from one member to another, and holds for the bytes that flow in
// that direction in whichever connection: etcd's members receive much of their
// traffic in answers to requests that they sent themselves.
//
// Who opened a connection is read from /proc, so the proxies need to know
// nothing about the protocol.
type Network struct {
	cluster   *Cluster
	mu        sync.Mutex
	rules     map[[2]int]Rule
	changed   chan struct{}
	listeners []net.Listener
	links     map[*link]struct{}
	closed    bool
}

// Rule says what happens to the bytes of one direction.
type Rule struct {
	// Hold keeps bytes back until the rule changes, as a network that drops every
	// packet does: nothing arrives, nothing fails at once.
	Hold bool
	// Refuse resets connections that exist and those that are opened.
	Refuse bool
	// Delay is added to every byte.
	Delay time.Duration
	// BytesPerSecond limits the rate of one connection; 0 means no limit.
	BytesPerSecond int
}

// link is one connection through a proxy.
type link struct {
	from, to int
	near     net.Conn
	far      net.Conn
	ended    chan struct{}
	once     sync.Once
}

func (l *link) reset() {
	l.once.Do(func() {
		close(l.ended)
		for _, conn := range []net.Conn{l.near, l.far} {
			if tcp, ok := conn.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0) // Makes Close send a reset.
				tcp.Close()
			}
		}
	})
}

func newNetwork(c *Cluster) *Network {
	return &Network{cluster: c, rules: map[[2]int]Rule{}, changed: make(chan struct{}), links: map[*link]struct{}{}}
}

// Set makes a rule for what one member sends to another.
func (n *Network) Set(from, to int, rule Rule) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rules[[2]int{from, to}] = rule
	n.announce(func(l *link) bool {
		return rule.Refuse && (l.from == from && l.to == to || l.from == to && l.to == from)
	})
}

// Cut makes a rule for both directions between a member and all the others.
func (n *Network) Cut(member int, rule Rule) {
	for _, other := range n.cluster.Nodes() {
		if other.Index != member {
			n.Set(member, other.Index, rule)
			n.Set(other.Index, member, rule)
		}
	}
}

// Heal forgets all rules. With reset, the connections that lost bytes for a
// while are reset, as a firewall does that has forgotten them; otherwise what
// was held back arrives late.
func (n *Network) Heal(reset bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	touched := n.rules
	n.rules = map[[2]int]Rule{}
	n.announce(func(l *link) bool {
		return reset && (touched[[2]int{l.from, l.to}].Hold || touched[[2]int{l.to, l.from}].Hold)
	})
}

// announce wakes all links and resets some of them; the lock is held.
func (n *Network) announce(broken func(*link) bool) {
	close(n.changed)
	n.changed = make(chan struct{})
	for l := range n.links {
		if broken(l) {
			l.reset()
		}
	}
}

func (n *Network) rule(from, to int) (Rule, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rules[[2]int{from, to}], n.changed
}

func (n *Network) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	for _, l := range n.listeners {
		l.Close()
	}
	for l := range n.links {
		l.reset()
	}
}

// serve forwards what is sent to the public address of a member.
func (n *Network) serve(to int, public, private string) error {
	listener, err := net.Listen("tcp", public)
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.listeners = append(n.listeners, listener)
	n.mu.Unlock()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go n.forward(conn, to, private)
		}
	}()
	return nil
}

func (n *Network) forward(near net.Conn, to int, private string) {
	from := n.opener(near)
	l := &link{from: from, to: to, near: near, ended: make(chan struct{})}
	there, _ := n.rule(from, to)
	back, _ := n.rule(to, from)
	if from < 0 || there.Refuse || back.Refuse {
		l.reset()
		return
	}
	// A connection is opened with a packet in each direction.
	if !n.passable(l, from, to) || !n.passable(l, to, from) {
		return
	}
	far, err := net.DialTimeout("tcp", private, time.Second)
	if err != nil {
		l.reset()
		return
	}
	l.far = far
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		l.reset()
		return
	}
	n.links[l] = struct{}{}
	n.mu.Unlock()
	go n.pump(l, near, far, from, to)
	n.pump(l, far, near, to, from)
	n.mu.Lock()
	delete(n.links, l)
	n.mu.Unlock()
}

// passable waits until the direction holds nothing back; false when the link
// has ended.
func (n *Network) passable(l *link, from, to int) bool {
	for {
		rule, changed := n.rule(from, to)
		if rule.Refuse {
			l.reset()
			return false
		}
		if !rule.Hold {
			return true
		}
		select {
		case <-l.ended:
			return false
		case <-changed:
		}
	}
}

type chunk struct {
	due  time.Time
	data []byte
}

// pump copies one direction of a link. Reading goes on while a chunk is
// delayed, so that a delay costs no throughput.
func (n *Network) pump(l *link, src, dst net.Conn, from, to int) {
	defer l.reset()
	chunks := make(chan chunk, 64)
	go func() {
		defer close(chunks)
		for {
			data := make([]byte, 16<<10)
			size, err := src.Read(data)
			if size > 0 {
				rule, _ := n.rule(from, to)
				select {
				case chunks <- chunk{time.Now().Add(rule.Delay), data[:size]}:
				case <-l.ended:
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	for c := range chunks {
		if !wait(l, time.Until(c.due)) || !n.passable(l, from, to) {
			return
		}
		rule, _ := n.rule(from, to)
		if rule.BytesPerSecond > 0 && !wait(l, time.Duration(len(c.data))*time.Second/time.Duration(rule.BytesPerSecond)) {
			return
		}
		if _, err := dst.Write(c.data); err != nil {
			return
		}
	}
}

func wait(l *link, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	select {
	case <-l.ended:
		return false
	case <-time.After(d):
		return true
	}
}

// opener finds the member whose process opened a connection, or -1: /proc/net
// has the inode of the other end's socket, /proc/PID/fd who holds it.
func (n *Network) opener(conn net.Conn) int {
	theirs, ours := conn.RemoteAddr().(*net.TCPAddr), conn.LocalAddr().(*net.TCPAddr)
	want := []string{procAddress(theirs), procAddress(ours)}
	text, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return -1
	}
	inode := ""
	for _, line := range strings.Split(string(text), "\n") {
		fields := strings.Fields(line)
		if len(fields) > 9 && fields[1] == want[0] && fields[2] == want[1] {
			inode = fields[9]
		}
	}
	if inode == "" {
		return -1
	}
	socket := "socket:[" + inode + "]"
	for _, m := range n.cluster.Nodes() {
		held, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", m.PID()))
		if err != nil {
			continue
		}
		for _, fd := range held {
			if target, err := os.Readlink(fd); err == nil && target == socket {
				return m.Index
			}
		}
	}
	return -1
}

// procAddress is an IPv4 address as /proc/net/tcp writes it.
func procAddress(a *net.TCPAddr) string {
	ip := a.IP.To4()
	return fmt.Sprintf("%02X%02X%02X%02X:%04X", ip[3], ip[2], ip[1], ip[0], a.Port)
}

// Any picks one of some members.
func Any(members []*Member) *Member { return members[rand.IntN(len(members))] }
