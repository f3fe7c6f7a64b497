package identity

import "os"

// openFiles are files that prepare wrote as long as init will write them, and left open: init then costs one system call
// for each, where opening, looking and closing would cost five, dear ones under gVisor.
type openFiles map[string]*openFile

type openFile struct {
	file *os.File
	size int
}

// open adds a file that says content.
func (f openFiles) open(p *Platform, name, content string) {
	if file, err := os.OpenFile(p.path(name), os.O_WRONLY, 0); err == nil {
		f[name] = &openFile{file: file, size: len(content)}
	}
}

// write makes the file say content; false when it is not open, or would have to be cut.
func (f openFiles) write(name, content string) bool {
	open := f[name]
	if open == nil || len(content) < open.size {
		return false
	}
	_, err := open.file.WriteAt([]byte(content), 0)
	return err == nil
}

func (f openFiles) close() {
	for _, open := range f {
		_ = open.file.Close()
	}
}
