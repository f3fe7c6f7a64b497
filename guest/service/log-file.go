package service

import (
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	// logBytesMax is when a log begins anew; the one before is kept beside it, so a service costs at most twice this.
	logBytesMax = 1 << 20
	// tailBytesMax is how much of the end is told when a service fails to start.
	tailBytesMax = 4096
)

// logFile takes a service's output, bounded however much that is.
type logFile struct {
	path string
	mu   sync.Mutex
	file *os.File
	size int64
	last []byte
}

func openLog(path string) (*logFile, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	l := &logFile{path: path, file: file}
	if info, err := file.Stat(); err == nil {
		l.size = info.Size()
	}
	return l, nil
}

// copy moves a pipe's content into the log until the last writer is gone. A full disk loses log lines, no service.
func (l *logFile) copy(out *os.File) {
	defer out.Close()
	_, _ = io.CopyBuffer(struct{ io.Writer }{l}, struct{ io.Reader }{out}, make([]byte, 4096))
}

// Write never fails: a log is not worth stopping a service for.
func (l *logFile) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = append(l.last, data...)
	if extra := len(l.last) - tailBytesMax; extra > 0 {
		l.last = append(l.last[:0], l.last[extra:]...)
	}
	if l.file == nil {
		return len(data), nil
	}
	if l.size+int64(len(data)) > logBytesMax {
		_ = os.Rename(l.path, l.path+".1")
		if file, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644); err == nil {
			l.file.Close()
			l.file, l.size = file, 0
		}
	}
	n, _ := l.file.Write(data)
	l.size += int64(n)
	return len(data), nil
}

// say adds a line of the supervisor's own.
func (l *logFile) say(text string) {
	_, _ = l.Write([]byte(time.Now().UTC().Format(time.RFC3339) + " torpor: " + text + "\n"))
}

func (l *logFile) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.last)
}

func (l *logFile) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}
