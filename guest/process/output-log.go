package process

import "sync"

// Stream names one output of a process.
type Stream uint8

// The outputs. A process on a terminal has only Terminal, others have Stdout and Stderr.
const (
	Stdout Stream = iota
	Stderr
	Terminal
	streamCount
)

// field is the stream's name in a data event.
func (s Stream) field() string { return [...]string{"stdout", "stderr", "pty"}[s] }

// Bounds of what is kept of output, in bytes.
const (
	// ChunkBytesMax is the most one data event carries (E2B's figure for pipes).
	ChunkBytesMax = 32 << 10
	// terminalChunkBytesMax is the same for terminals.
	terminalChunkBytesMax = 16 << 10
	// lagBytesMax is how far a reader that must lose nothing may fall behind before the process is held up.
	lagBytesMax = 64 << 10
	// replayBytesMax is how much of each stream is kept for those who connect later.
	replayBytesMax = 1 << 20
	// replayTotalBytesMax bounds what all processes together keep.
	replayTotalBytesMax = 32 << 20
	// Bounds of one part of a stream, and of what all of them together keep as long as there is room for the smallest.
	partBytesMin    = 64 << 10
	partBytesMax    = replayBytesMax
	partsTotalBytes = 16 << 20
)

// budget counts the output bytes kept by all processes.
type budget struct {
	mu      sync.Mutex
	used    int
	holding int // readers that keep more than they have yet to read
}

func (b *budget) add(n int) (over int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used += n
	return b.used - replayTotalBytesMax
}

// partBytes is how much a stream that comes in parts may send at once, which is what is kept for it: less, the more there are.
func (b *budget) partBytes() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return min(max(partsTotalBytes/max(1, b.holding), partBytesMin), partBytesMax)
}

func (b *budget) hold(readers int) {
	b.mu.Lock()
	b.holding += readers
	b.mu.Unlock()
}

type chunk struct {
	stream Stream
	start  uint64 // offset of the first byte in its stream
	data   []byte // written bytes never change; bytes may be added behind them
}

// outputLog keeps the latest output of a process, in the order it was read, for any number of readers,
// each at its own place.
type outputLog struct {
	mu      sync.Mutex
	room    sync.Cond // signalled when a reader advances or leaves
	budget  *budget
	chunks  []chunk
	first   uint64 // number of chunks[0], counted from the beginning
	held    [streamCount]int
	stored  [streamCount]uint64
	readers map[*logReader]struct{}
	dropped bool // nothing is kept any more
}

func newOutputLog(b *budget) *outputLog {
	l := &outputLog{budget: b, readers: map[*logReader]struct{}{}}
	l.room.L = &l.mu
	return l
}

// append stores a copy of data, first waiting until no lossless reader is too far behind.
func (l *outputLog) append(stream Stream, data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.mustWait() {
		l.room.Wait()
	}
	if l.dropped && len(l.readers) == 0 {
		l.stored[stream] += uint64(len(data))
		return
	}
	limit := ChunkBytesMax
	if stream == Terminal {
		limit = terminalChunkBytesMax
	}
	added := len(data)
	if last := len(l.chunks) - 1; last >= 0 && l.chunks[last].stream == stream && len(l.chunks[last].data) < limit {
		n := min(len(data), limit-len(l.chunks[last].data))
		l.chunks[last].data = append(l.chunks[last].data, data[:n]...)
		l.stored[stream] += uint64(n)
		data = data[n:]
	}
	for len(data) > 0 {
		n := min(len(data), limit)
		l.chunks = append(l.chunks, chunk{stream: stream, start: l.stored[stream], data: append([]byte(nil), data[:n]...)})
		l.stored[stream] += uint64(n)
		data = data[n:]
	}
	l.held[stream] += added
	over := l.budget.add(added)
	for r := range l.readers {
		r.lag += added
		r.notify()
	}
	l.trim(over)
}

func (l *outputLog) mustWait() bool {
	for r := range l.readers {
		if r.lossless && r.lag >= lagBytesMax {
			return true
		}
	}
	return false
}

// trim drops the oldest chunks that are beyond the bounds and that no lossless reader still needs.
func (l *outputLog) trim(over int) {
	oldestNeeded := l.first + uint64(len(l.chunks))
	for r := range l.readers {
		if r.lossless && r.oldestNeeded() < oldestNeeded {
			oldestNeeded = r.oldestNeeded()
		}
	}
	drop := 0
	for drop < len(l.chunks) && l.first+uint64(drop) < oldestNeeded {
		c := &l.chunks[drop]
		if !l.dropped && over <= 0 && l.held[c.stream] <= replayBytesMax {
			break
		}
		n := len(c.data)
		l.held[c.stream] -= n
		l.budget.add(-n)
		over -= n
		c.data = nil
		drop++
	}
	if drop == 0 {
		return
	}
	l.first += uint64(drop)
	l.chunks = l.chunks[drop:]
	if cap(l.chunks) > 64 && len(l.chunks) < cap(l.chunks)/4 {
		l.chunks = append([]chunk(nil), l.chunks...)
	}
}

// drop gives the kept output back to the budget; readers still there keep what they have yet to read.
func (l *outputLog) drop() {
	l.mu.Lock()
	l.dropped = true
	l.trim(0)
	l.mu.Unlock()
}

// kept is how many bytes the log holds.
func (l *outputLog) kept() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[Stdout] + l.held[Stderr] + l.held[Terminal]
}

// logReader is one reader's place in the log.
type logReader struct {
	log      *outputLog
	lossless bool
	lag      int
	next     uint64 // number of the chunk to read from
	offset   int    // bytes of that chunk already read
	consumed [streamCount]uint64
	// holds says that output is kept from chunk heldFrom on, also what has been read: for whoever goes on in its place.
	holds    bool
	heldFrom uint64
	// wake holds a token when there may be something new.
	wake chan struct{}
}

// reader attaches a reader at the beginning of what is kept, or at its end. A lossless reader holds the process
// up when it falls behind; another one loses the oldest output and is told how much.
func (l *outputLog) reader(fromStart, lossless bool) *logReader {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &logReader{log: l, lossless: lossless, wake: make(chan struct{}, 1)}
	if fromStart {
		r.next = l.first
		r.lag = l.held[Stdout] + l.held[Stderr] + l.held[Terminal]
	} else {
		r.consumed = l.stored
		r.next = l.first + uint64(len(l.chunks))
		// The newest chunk may still grow; begin behind what it holds.
		if len(l.chunks) > 0 {
			r.next--
			r.offset = len(l.chunks[len(l.chunks)-1].data)
		}
	}
	l.readers[r] = struct{}{}
	return r
}

// readerFrom attaches a lossless reader behind the bytes of each stream that its client has. It holds what it reads until
// it is closed. False when the client claims more than there has been.
func (l *outputLog) readerFrom(has [streamCount]uint64) (*logReader, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &logReader{log: l, lossless: true, wake: make(chan struct{}, 1), consumed: has, next: l.first, holds: true, heldFrom: l.first}
	for s := range has {
		if has[s] > l.stored[s] {
			return nil, false
		}
		r.lag += min(l.held[s], int(l.stored[s]-has[s]))
	}
	for n := range l.chunks {
		if c := &l.chunks[n]; c.start+uint64(len(c.data)) > has[c.stream] {
			break
		}
		r.heldFrom++
	}
	if last := l.first + uint64(len(l.chunks)); r.heldFrom == last && last > l.first {
		r.heldFrom-- // the newest chunk may still grow
	}
	l.readers[r] = struct{}{}
	l.budget.hold(1)
	return r, true
}

// skip leaves out what the client has of each stream already. It must be called before the first take.
func (r *logReader) skip(has [streamCount]uint64) {
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	for s := range has {
		r.consumed[s] = max(r.consumed[s], min(has[s], r.log.stored[s]))
		if dropped := r.log.stored[s] - uint64(r.log.held[s]); r.consumed[s] > dropped {
			r.lag -= int(r.consumed[s] - dropped) // of what is kept it lags behind in the rest alone
		}
	}
}

// position is how much of each stream lies before what r has yet to give.
func (r *logReader) position() *streamOffsets {
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	return &streamOffsets{Stdout: r.consumed[Stdout], Stderr: r.consumed[Stderr], Pty: r.consumed[Terminal]}
}

// oldestNeeded is the chunk that is to be kept for r.
func (r *logReader) oldestNeeded() uint64 {
	if r.holds {
		return r.heldFrom
	}
	return r.next
}

func (r *logReader) notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// take gives the next piece of output and how many bytes of its stream were lost before it; ok is false when
// there is nothing yet. The data must not be changed.
func (r *logReader) take() (stream Stream, data []byte, lost uint64, ok bool) {
	l := r.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.next < l.first {
		r.next, r.offset = l.first, 0
	}
	for r.next-l.first < uint64(len(l.chunks)) {
		c := &l.chunks[r.next-l.first]
		if r.offset >= len(c.data) {
			if r.next-l.first == uint64(len(l.chunks))-1 {
				return 0, nil, 0, false // it may still grow
			}
			r.next++
			r.offset = 0
			continue
		}
		at := c.start + uint64(r.offset)
		if has := r.consumed[c.stream]; at < has { // its client has that from an earlier stream
			r.offset += int(min(has-at, uint64(len(c.data)-r.offset)))
			continue
		}
		data = c.data[r.offset:len(c.data):len(c.data)]
		lost = at - r.consumed[c.stream]
		r.consumed[c.stream] = at + uint64(len(data))
		r.offset = len(c.data)
		r.lag -= len(data) // of what was lost it was not behind
		l.room.Broadcast()
		if l.dropped {
			l.trim(0)
		}
		return c.stream, data, lost, true
	}
	return 0, nil, 0, false
}

func (r *logReader) close() {
	l := r.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, open := l.readers[r]; !open {
		return
	}
	delete(l.readers, r)
	if r.holds {
		l.budget.hold(-1)
	}
	l.room.Broadcast()
	l.trim(l.budget.add(0))
}
