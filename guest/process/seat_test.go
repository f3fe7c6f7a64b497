package process

import "testing"

func TestAnOfferedSeatIsForWhoComesForTheNextPartAlone(t *testing.T) {
	log := newOutputLog(&budget{})
	reader := func() *logReader {
		r, ok := log.readerFrom([streamCount]uint64{})
		if !ok {
			t.Fatal("no reader")
		}
		return r
	}
	first, again, next := reader(), reader(), reader()
	var s seat
	if !s.take(first, 1, false) {
		t.Fatal("an empty seat is not given")
	}
	if s.take(next, 1, true) {
		t.Error("the seat of one who sits is given away")
	}
	vacated := s.offer(first)
	if s.take(again, 1, false) {
		t.Error("a repeated start takes the seat of a client that only reads slowly")
	}
	select {
	case <-vacated:
		t.Error("the slow client's part is ended though nobody came")
	default:
	}
	if !s.take(next, 1, true) {
		t.Error("who comes for the next part is refused")
	}
	<-vacated
	s.reserve(next, nextPartWithin, func() {})
	if !s.take(again, 1, false) {
		t.Error("a repeated start does not get a seat whose client has gone")
	}
	if !s.take(reader(), 2, false) {
		t.Error("a stream from before a freeze keeps the seat")
	}
}
