package identity

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"
	"unsafe"
)

// Platform is what init changes of the machine. Tests put a folder and fakes here.
type Platform struct {
	// Root is put before every path; empty is the machine itself.
	Root string
	// SetClock steps the clock. [ErrHostClock] says that the machine follows the host's and none is needed.
	SetClock    func(time.Time) error
	SetHostname func(string) error
	// AddEntropy stirs bytes into the kernel's generator and has it start anew.
	// [ErrHostRandom] says that the machine uses the host's, which no copy shares.
	AddEntropy func([]byte) error
}

// Errors by which a platform says that it has nothing to do.
var (
	ErrHostClock  = errors.New("host_clock")
	ErrHostRandom = errors.New("host_rng")
)

// Machine is the platform the agent runs on.
func Machine() Platform {
	return Platform{SetClock: setClock, SetHostname: func(name string) error { return syscall.Sethostname([]byte(name)) }, AddEntropy: addEntropy}
}

func (p *Platform) path(name string) string { return filepath.Join("/", p.Root, name) }

func setClock(to time.Time) error {
	tv := syscall.NsecToTimeval(to.UnixNano())
	err := syscall.Settimeofday(&tv)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSYS) {
		return ErrHostClock // gVisor: root may not, since the clock is the host's
	}
	return err
}

// From linux/random.h.
const (
	randomAddEntropy = 0x40085203
	randomReseed     = 0x5207
)

func addEntropy(seed []byte) error {
	fd, err := syscall.Open("/dev/urandom", syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	pool := make([]byte, 8+len(seed))
	binary.NativeEndian.PutUint32(pool, uint32(len(seed)*8))
	binary.NativeEndian.PutUint32(pool[4:], uint32(len(seed)))
	copy(pool[8:], seed)
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), randomAddEntropy, uintptr(unsafe.Pointer(&pool[0])))
	if errno == syscall.ENOTTY {
		// gVisor has no generator of its own.
		_, _ = syscall.Write(fd, seed)
		return ErrHostRandom
	}
	if errno == 0 {
		_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), randomReseed, 0)
	}
	if errno != 0 {
		return errno
	}
	return nil
}

// writeFile makes a file of the machine say content, following a link. Missing folders are made. An existing file is
// written over in place and cut only when it was longer: giving back disk space is dear in gVisor.
func (p *Platform) writeFile(name, content string, mode os.FileMode) error {
	path := p.path(name)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, mode)
	if errors.Is(err, os.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
			if info, lstatErr := os.Lstat(path); lstatErr == nil && info.Mode()&os.ModeSymlink != 0 {
				_ = os.Remove(path) // a link that leads nowhere
			}
			file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, mode)
		}
	}
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if _, err := file.WriteAt([]byte(content), 0); err != nil {
		return err
	}
	if info.Size() > int64(len(content)) {
		if err := file.Truncate(int64(len(content))); err != nil {
			return err
		}
	}
	if info.Mode().Perm() != mode {
		return file.Chmod(mode) // the umask must not decide
	}
	return nil
}
