// Package changes carries what a sandbox has changed in its root filesystem: out of one that is to sleep without its memory,
// and into one that has just booted from the same template. Its stream walks the tree: a folder's record is followed by
// those of what is new or changed in it, and its end names what is as in the template, so that the rest is known to be
// gone. Names are bytes, of one part each: no record can lead elsewhere, and no path is too long.
package changes

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sort"
	"time"
)

// magic opens a stream.
const magic = "torpor-changes 1\n"

// kind says what a record is about.
type kind byte

const (
	folder     kind = 'd' // begins; in the template or new
	folderEnd  kind = 'e'
	mountPoint kind = 'm' // a folder whose content is none of the root's
	file       kind = 'f' // followed by its pieces
	piece      kind = 'c' // of none: the end of the file
	link       kind = 'l'
	otherName  kind = 'h' // a hard link
	pipe       kind = 'p'
	charDevice kind = 'u'
	device     kind = 'b'
	end        kind = 'z'
)

// record is one of them; which fields are in it depends on its kind.
type record struct {
	kind     kind
	name     string
	mode     uint32
	uid, gid uint32
	modified time.Time
	size     int64
	rdev     uint64
	// target is a link's; of another name the path of the first below the root.
	target string
	xattrs map[string][]byte
	// kept are the names in a folder that are as in the template.
	kept []string
}

const (
	nameMax   = 255
	pathMax   = 64 << 20 // of no more than memory
	xattrMax  = 64 << 10
	pieceMax  = 1 << 20
	countMax  = 1 << 24
	zeroBlock = 4096
)

type writer struct {
	out     *bufio.Writer
	scratch []byte
}

func newWriter(out io.Writer) *writer {
	w := &writer{out: bufio.NewWriterSize(out, 256<<10)}
	_, _ = w.out.WriteString(magic)
	return w
}

func (w *writer) number(n uint64) { w.scratch = binary.AppendUvarint(w.scratch, n) }

func (w *writer) text(s string) {
	w.number(uint64(len(s)))
	w.scratch = append(w.scratch, s...)
}

// put writes a record. Errors are the stream's.
func (w *writer) put(r *record) error {
	w.scratch = append(w.scratch[:0], byte(r.kind))
	switch r.kind {
	case mountPoint:
		w.text(r.name)
	case folder, file, link, pipe, charDevice, device:
		w.text(r.name)
		for _, n := range []uint32{r.mode, r.uid, r.gid} {
			w.number(uint64(n))
		}
		w.number(uint64(r.modified.Unix()))
		w.number(uint64(r.modified.Nanosecond()))
		w.number(uint64(r.size))
		w.number(r.rdev)
		w.text(r.target)
		w.number(uint64(len(r.xattrs)))
		for _, name := range sortedNames(r.xattrs) {
			w.text(name)
			w.text(string(r.xattrs[name]))
		}
	case otherName:
		w.text(r.name)
		w.text(r.target)
	case folderEnd:
		w.number(uint64(len(r.kept)))
		for _, name := range r.kept {
			w.text(name)
		}
	case end:
		w.number(uint64(r.size))
	}
	_, err := w.out.Write(w.scratch)
	return err
}

func (w *writer) piece(offset int64, content []byte) error {
	w.scratch = append(w.scratch[:0], byte(piece))
	w.number(uint64(offset))
	w.number(uint64(len(content)))
	if _, err := w.out.Write(w.scratch); err != nil {
		return err
	}
	_, err := w.out.Write(content)
	return err
}

func sortedNames(m map[string][]byte) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// errCut says that a stream ends before its end.
var errCut = errors.New("the stream of changes was cut off")

type reader struct{ in *bufio.Reader }

func newReader(in io.Reader) (*reader, error) {
	r := &reader{in: bufio.NewReaderSize(in, 256<<10)}
	head := make([]byte, len(magic))
	if _, err := io.ReadFull(r.in, head); err != nil {
		return nil, cut(err)
	}
	if string(head) != magic {
		return nil, fmt.Errorf("the stream begins with %q and not as a stream of changes does", head)
	}
	return r, nil
}

func cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errCut
	}
	return err
}

// next reads a record. Errors: one that is malformed or cut off.
func (r *reader) next() (*record, error) {
	b, err := r.in.ReadByte()
	if err != nil {
		return nil, cut(err)
	}
	f := fields{in: r.in}
	found := &record{kind: kind(b)}
	switch found.kind {
	case mountPoint:
		found.name = f.text(nameMax)
	case folder, file, link, pipe, charDevice, device:
		found.name = f.text(nameMax)
		found.mode, found.uid, found.gid = uint32(f.number()), uint32(f.number()), uint32(f.number())
		seconds := int64(f.number())
		found.modified = time.Unix(seconds, int64(f.number()))
		found.size, found.rdev = int64(f.number()), f.number()
		found.target = f.text(pathMax)
		if count := f.count(); count > 0 {
			found.xattrs = map[string][]byte{}
			for ; count > 0 && f.err == nil; count-- {
				name := f.text(nameMax)
				found.xattrs[name] = []byte(f.text(xattrMax))
			}
		}
	case otherName:
		found.name, found.target = f.text(nameMax), f.text(pathMax)
	case folderEnd:
		for count := f.count(); count > 0 && f.err == nil; count-- {
			found.kept = append(found.kept, f.text(nameMax))
		}
	case end:
		found.size = int64(f.number())
	default:
		return nil, fmt.Errorf("the stream of changes has a record of an unknown kind %q", b)
	}
	return found, cut(f.err)
}

// piece reads the next part of a file into buffer; of none at the file's end.
func (r *reader) piece(buffer []byte) (offset int64, content []byte, err error) {
	b, err := r.in.ReadByte()
	if err != nil {
		return 0, nil, cut(err)
	}
	if kind(b) != piece {
		return 0, nil, fmt.Errorf("the stream of changes has a record of kind %q where a file's content goes on", b)
	}
	f := fields{in: r.in}
	offset = int64(f.number())
	size := f.number()
	if f.err == nil && (size > pieceMax || offset < 0) {
		f.err = fmt.Errorf("a piece of a file has %d bytes at %d", size, offset)
	}
	if f.err != nil {
		return 0, nil, cut(f.err)
	}
	_, err = io.ReadFull(r.in, buffer[:size])
	return offset, buffer[:size], cut(err)
}

// fields reads a record's parts up to the first error.
type fields struct {
	in  *bufio.Reader
	err error
}

func (f *fields) number() uint64 {
	if f.err != nil {
		return 0
	}
	var n uint64
	n, f.err = binary.ReadUvarint(f.in)
	return n
}

func (f *fields) count() uint64 {
	n := f.number()
	if n > countMax && f.err == nil {
		f.err = fmt.Errorf("a record counts %d parts", n)
	}
	return n
}

func (f *fields) text(most uint64) string {
	n := f.number()
	if n > most && f.err == nil {
		f.err = fmt.Errorf("a record has a text of %d bytes where at most %d can be", n, most)
	}
	if f.err != nil {
		return ""
	}
	text := make([]byte, n)
	_, f.err = io.ReadFull(f.in, text)
	return string(text)
}
