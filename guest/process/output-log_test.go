package process

import (
	"testing"
	"time"
)

// appended runs an append beside the test; what it gives is closed when the log has taken the bytes.
func appended(l *outputLog, size int) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.append(Stdout, make([]byte, size))
	}()
	return done
}

func TestAReaderAttachedAfterAGapHoldsTheProcessUp(t *testing.T) {
	l := newOutputLog(&budget{})
	for range 3 * replayBytesMax / ChunkBytesMax {
		l.append(Stdout, make([]byte, ChunkBytesMax))
	}
	reader, ok := l.readerFrom([streamCount]uint64{})
	if !ok {
		t.Fatal("no reader")
	}
	if _, _, lost, ok := reader.take(); !ok || lost < replayBytesMax {
		t.Fatalf("lost %d, %v", lost, ok)
	}
	for {
		if _, _, _, ok := reader.take(); !ok {
			break
		}
	}
	if reader.lag != 0 {
		t.Errorf("having read everything it is %d behind", reader.lag)
	}
	l.append(Stdout, make([]byte, lagBytesMax))
	more := appended(l, 1)
	select {
	case <-more:
		t.Error("a reader as far behind as it may be does not hold the process up")
	case <-time.After(50 * time.Millisecond):
	}
	for range lagBytesMax / ChunkBytesMax {
		if _, _, _, ok := reader.take(); !ok {
			t.Fatal("nothing to read")
		}
	}
	<-more
	reader.close()
}
