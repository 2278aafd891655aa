package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mainstay/ports"
)

// server is a running process with its data.
type server struct {
	name    string
	kind    kind
	port    int
	dir     string
	command *exec.Cmd
	ended   chan error
	pid     int
	trace   string
}

// start starts a server, and returns when it answers. With `traced` its syncs are written down.
func start(one named, dir string, traced bool) (*server, error) {
	data := filepath.Join(dir, "data")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, err
	}
	s := &server{name: one.name, kind: kindOf(one.name), dir: data, ended: make(chan error, 1)}
	free, err := ports.Free(5)
	if err != nil {
		return nil, err
	}
	s.port = free[0]
	words, err := s.kind.command(one.path, dir, data, free)
	if err != nil {
		return nil, err
	}
	if traced {
		s.trace = filepath.Join(dir, "trace")
		words = append([]string{"strace", "-f", "-qq", "-e", "signal=none", "-e", "trace=fsync,fdatasync", "-o", s.trace}, words...)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s.command = exec.Command(words[0], words[1:]...)
	s.command.Stdout, s.command.Stderr, s.command.Dir = log, log, dir
	// A process group of its own, which `stop` ends as a whole.
	s.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := s.command.Start(); err != nil {
		return nil, err
	}
	go func() { s.ended <- s.command.Wait() }()
	s.pid = s.command.Process.Pid
	if err := s.ready(); err != nil {
		s.stop()
		said, _ := os.ReadFile(filepath.Join(dir, "log"))
		return nil, fmt.Errorf("%w\n%s", err, said[max(0, len(said)-2000):])
	}
	return s, nil
}

// ready waits until a put is answered.
func (s *server) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), pause)
	defer cancel()
	last := errors.New("it was not asked")
	for ctx.Err() == nil {
		select {
		case err := <-s.ended:
			s.ended <- err
			return fmt.Errorf("ended: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		last = func() error {
			try, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			one, err := s.kind.open(try, s.port)
			if err != nil {
				return err
			}
			defer one.close()
			return one.put(try, keyOf(0), []byte("ready"))
		}()
		if last == nil {
			return nil
		}
	}
	return fmt.Errorf("it did not answer in time: %w", last)
}

func (s *server) stop() {
	_ = syscall.Kill(-s.pid, syscall.SIGTERM)
	select {
	case <-s.ended:
	case <-time.After(20 * time.Second):
		_ = syscall.Kill(-s.pid, syscall.SIGKILL)
		<-s.ended
	}
}

// used is what a process has used since it began.
type used struct {
	cpu     time.Duration
	written int64
	// others is the processor time of whatever is neither this server nor this program.
	others time.Duration
}

func (s *server) used() (used, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.pid))
	if err != nil {
		return used{}, err
	}
	// The name, in brackets, may have spaces; user and system time are the 12th and 13th word behind it, in hundredths.
	words := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var ticks int64
	for _, word := range words[11:13] {
		count, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return used{}, err
		}
		ticks += count
	}
	written, err := s.figure("io", "write_bytes:")
	if err != nil {
		return used{}, err
	}
	cpu := time.Duration(ticks) * 10 * time.Millisecond
	all, err := busy()
	if err != nil {
		return used{}, err
	}
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return used{}, err
	}
	return used{cpu, written, all - cpu - time.Duration(own.Utime.Nano()+own.Stime.Nano())}, nil
}

// busy is the time that all processors have spent since the start of the machine with anything but waiting.
func busy() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	var ticks int64
	for at, word := range strings.Fields(line) {
		// user, nice, system, idle, iowait, irq, softirq, steal; guests are in the first two.
		if at == 0 || at == 4 || at == 5 || at > 8 {
			continue
		}
		count, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += count
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

func (s *server) memoryMB() (float64, error) {
	kilobytes, err := s.figure("status", "VmRSS:")
	return float64(kilobytes) * 1024 / 1e6, err
}

// figure is the number behind a name in a file of /proc.
func (s *server) figure(file, name string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", s.pid, file))
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut("\n"+string(text), "\n"+name)
	if words := strings.Fields(rest); ok && len(words) > 0 {
		return strconv.ParseInt(words[0], 10, 64)
	}
	return 0, fmt.Errorf("/proc/%d/%s has no %s", s.pid, file, name)
}

// filesMB is what the files of the server occupy, what is prepared for later included.
func (s *server) filesMB() (float64, error) {
	var blocks int64
	err := filepath.WalkDir(s.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			blocks += info.Sys().(*syscall.Stat_t).Blocks
		}
		return err
	})
	return float64(blocks) * 512 / 1e6, err
}

// traced is how many syncs there were so far.
func (s *server) traced() (int, error) {
	text, err := os.ReadFile(s.trace)
	return bytes.Count(text, []byte("sync(")), err
}
