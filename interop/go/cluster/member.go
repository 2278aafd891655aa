package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
)

// Member is one server process, of a member or of an observer, its addresses and its disk.
type Member struct {
	Name string
	// Index is the number of the process in its cluster; it never changes.
	Index int
	// Endpoint is host:port for clients.
	Endpoint string
	// PeerURL is what the member advertises to the others.
	PeerURL string
	// Server is the binary that the next start takes; empty for the cluster's.
	Server string
	// Flags are given to this member's next start after those of the cluster.
	Flags []string
	// Gone says that the member was removed for good and is not to be started.
	Gone bool

	cluster    *Cluster
	dir        string
	listenPeer string
	initial    string
	state      string
	// feeds are those that feed an observer, the first that it tries first; a member has none.
	feeds []*Member

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
	// asked says that an exit of the present process is our doing.
	asked  bool
	paused bool
	conn   *grpc.ClientConn
}

func (m *Member) logPath() string { return filepath.Join(m.dir, "log") }

// Log is everything that the member's processes have logged.
func (m *Member) Log() (string, error) {
	log, err := os.ReadFile(m.logPath())
	return string(log), err
}

// DataDir is where the member keeps its data.
func (m *Member) DataDir() string { return filepath.Join(m.dir, "data") }

// Start starts the process; it does not wait until the member is healthy.
func (m *Member) Start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running() {
		return fmt.Errorf("member %s already runs", m.Name)
	}
	log, err := os.OpenFile(m.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	server := m.cluster.Server
	if m.Server != "" {
		server = m.Server
	}
	cmd := exec.Command(server, m.flags()...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, m.dir
	// The process must not survive us, however we end.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := spawn(cmd); err != nil {
		return err
	}
	m.cmd, m.exited, m.asked, m.paused = cmd, make(chan struct{}), false, false
	go m.reap(cmd, m.exited)
	return nil
}

func (m *Member) flags() []string {
	var flags []string
	if m.IsObserver() {
		feeds := make([]string, len(m.feeds))
		for i, feed := range m.feeds {
			feeds[i] = feed.PeerURL
		}
		flags = []string{"observer", "--feed", strings.Join(feeds, ",")}
	} else {
		flags = []string{
			"--initial-cluster", m.initial, "--initial-cluster-token", m.cluster.Token, "--initial-cluster-state", m.state,
		}
	}
	flags = append(flags,
		"--name", m.Name, "--data-dir", m.DataDir(),
		"--listen-client-urls", "http://"+m.Endpoint, "--advertise-client-urls", "http://"+m.Endpoint,
		"--listen-peer-urls", m.listenPeer, "--initial-advertise-peer-urls", m.PeerURL, "--log-level", "warn",
	)
	return append(append(flags, m.cluster.Flags...), m.Flags...)
}

// IsObserver says that the process is no member of the cluster.
func (m *Member) IsObserver() bool { return len(m.feeds) > 0 }

// reap waits for the end of a process and notes an end that nobody asked for.
func (m *Member) reap(cmd *exec.Cmd, exited chan struct{}) {
	err := cmd.Wait()
	m.mu.Lock()
	if !m.asked {
		m.cluster.mu.Lock()
		m.cluster.deaths = append(m.cluster.deaths, fmt.Sprintf("member %s ended by itself: %v", m.Name, err))
		m.cluster.mu.Unlock()
	}
	m.mu.Unlock()
	close(exited)
}

func (m *Member) running() bool {
	if m.cmd == nil {
		return false
	}
	select {
	case <-m.exited:
		return false
	default:
		return true
	}
}

// Running says whether the process exists, paused or not.
func (m *Member) Running() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.running()
}

// Paused says whether the process is stopped by Pause.
func (m *Member) Paused() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.paused
}

// Exited is closed when the present process has ended.
func (m *Member) Exited() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.exited
}

// ExpectExit says that the process may end by itself, for example because its
// member is removed.
func (m *Member) ExpectExit() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked = true
}

// PID is the id of the process, or 0.
func (m *Member) PID() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.running() {
		return 0
	}
	return m.cmd.Process.Pid
}

// Kill ends the process at once, as a power failure would, and waits for its end.
func (m *Member) Kill() {
	_ = m.end(syscall.SIGKILL, time.Minute) // A killed process always ends.
}

// Terminate asks the process to end and waits; it is an error when it takes
// longer than the time given.
func (m *Member) Terminate(within time.Duration) error {
	return m.end(syscall.SIGTERM, within)
}

func (m *Member) end(signal syscall.Signal, within time.Duration) error {
	m.mu.Lock()
	if !m.running() {
		m.mu.Unlock()
		return nil
	}
	m.asked = true
	_ = m.cmd.Process.Signal(signal) // It may have ended just now.
	if m.paused {
		_ = m.cmd.Process.Signal(syscall.SIGCONT)
		m.paused = false
	}
	exited := m.exited
	m.mu.Unlock()
	select {
	case <-exited:
		return nil
	case <-time.After(within):
		return fmt.Errorf("member %s did not end within %v of %v", m.Name, within, signal)
	}
}

// Pause stops the process where it stands; its connections stay open.
func (m *Member) Pause() error { return m.stopped(syscall.SIGSTOP, true) }

// Continue lets a paused process go on.
func (m *Member) Continue() error { return m.stopped(syscall.SIGCONT, false) }

func (m *Member) stopped(signal syscall.Signal, paused bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.running() {
		return errors.New("member " + m.Name + " does not run")
	}
	m.paused = paused
	return m.cmd.Process.Signal(signal)
}

// Wipe removes the data of a member that does not run.
func (m *Member) Wipe() error {
	if m.Running() {
		return errors.New("member " + m.Name + " still runs")
	}
	return os.RemoveAll(m.DataDir())
}

// CPU is the user and system time that the process has used.
func (m *Member) CPU() time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.PID()))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// RSS is the resident memory of the process in MiB.
func (m *Member) RSS() float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", m.PID()))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseFloat(fields[1], 64)
	return pages * float64(os.Getpagesize()) / (1 << 20)
}

var spawner struct {
	once     sync.Once
	requests chan func()
}

// spawn starts a process from one thread that never ends: the kernel sends the
// death signal when the *thread* that started the process ends.
func spawn(cmd *exec.Cmd) error {
	spawner.once.Do(func() {
		spawner.requests = make(chan func())
		go func() {
			runtime.LockOSThread()
			for f := range spawner.requests {
				f()
			}
		}()
	})
	result := make(chan error, 1)
	spawner.requests <- func() { result <- cmd.Start() }
	return <-result
}
