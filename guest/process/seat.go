package process

import (
	"sync"
	"time"
)

const (
	// nextPartWithin is how long the next part of a stream that comes in parts may take to be asked for once the client has let
	// go of the last one, which it may read as slowly as it likes.
	nextPartWithin = 5 * time.Second
	// returnWithin is how long the streams that a freeze cut may take to come back, counted while the machine runs unlocked.
	returnWithin = 30 * time.Second
)

// seat is the place of the one stream that a process is held up for, so that it loses nothing: the stream of its start, or
// one that took its place. A stream that was cut by a freeze, or that ended to be gone on with in a next part, leaves the
// seat reserved: its reader stays, output is kept from where it began, and the process waits once its pipes are full.
type seat struct {
	mu     sync.Mutex
	reader *logReader   // nil when the seat is empty
	epoch  uint64       // of the table when reader took it
	expiry *runningTime // set while the seat is reserved for a while
	// vacated is set while the seat is reserved for as long as its client reads, and closed when another takes it.
	vacated chan struct{}
}

// take gives the seat to a reader, unless one of this epoch sits there. One that is offered is kept for who has read the part
// before and comes for the next: another may be the second attempt of a client that only reads slowly.
func (s *seat) take(reader *logReader, epoch uint64, forNextPart bool) bool {
	s.mu.Lock()
	offered := s.vacated != nil && forNextPart
	if s.reader != nil && s.expiry == nil && !offered && s.epoch == epoch {
		s.mu.Unlock()
		return false
	}
	before := s.empty()
	s.reader, s.epoch = reader, epoch
	s.mu.Unlock()
	if before != nil {
		before.close()
	}
	return true
}

// leave gives the seat up. False when another has taken it meanwhile.
func (s *seat) leave(reader *logReader) bool {
	s.mu.Lock()
	mine := s.reader == reader
	if mine {
		s.empty()
	}
	s.mu.Unlock()
	reader.close()
	return mine
}

// reserve keeps the seat for a successor of reader, for a while.
func (s *seat) reserve(reader *logReader, within time.Duration, expire func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reader == reader {
		s.stopExpiry()
		s.expiry = afterRunning(within, expire)
	}
}

// offer keeps the seat for a successor of reader, without a limit. What it gives is closed when one has come.
func (s *seat) offer(reader *logReader) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	vacated := make(chan struct{})
	if s.reader == reader {
		s.vacated = vacated
	} else {
		close(vacated)
	}
	return vacated
}

// clear empties the seat, whoever has it.
func (s *seat) clear() {
	s.mu.Lock()
	reader := s.empty()
	s.mu.Unlock()
	if reader != nil {
		reader.close()
	}
}

// empty must be called with mu held.
func (s *seat) empty() *logReader {
	reader := s.reader
	s.reader = nil
	s.stopExpiry()
	if s.vacated != nil {
		close(s.vacated)
		s.vacated = nil
	}
	return reader
}

// stopExpiry must be called with mu held.
func (s *seat) stopExpiry() {
	if s.expiry != nil {
		s.expiry.stop()
		s.expiry = nil
	}
}

// reserve leaves p's seat for the stream that is to go on where reader's has ended.
func (p *process) reserve(reader *logReader, within time.Duration) {
	p.seat.reserve(reader, within, func() {
		if p.table.isFrozen() { // nobody can come yet
			p.reserve(reader, returnWithin)
			return
		}
		p.abandon(reader)
	})
}

// abandon gives p's seat up for good: whoever started the process has left it, or what holds for them is over.
func (p *process) abandon(reader *logReader) {
	if p.seat.leave(reader) && p.killOnDisconnect && !p.disowned.Load() && !p.isEnded() {
		p.terminate(killGraceDefault)
	}
}
