package process

import (
	"testing"
	"time"
)

func TestTimeInWhichTheMachineStoodStillDoesNotCount(t *testing.T) {
	for _, c := range []struct{ slice, took, counted time.Duration }{
		{time.Second, time.Second, time.Second},
		{time.Second, 1900 * time.Millisecond, 1900 * time.Millisecond},
		{time.Second, time.Hour, 500 * time.Millisecond},
		{20 * time.Millisecond, 25 * time.Millisecond, 25 * time.Millisecond},
		{20 * time.Millisecond, time.Hour, 10 * time.Millisecond},
	} {
		if got := counted(c.slice, c.took); got != c.counted {
			t.Errorf("a slice of %v that took %v counts as %v, not %v", c.slice, c.took, got, c.counted)
		}
	}
}

func TestRunningTimeFiresOnceAndOnlyUnlessStopped(t *testing.T) {
	fired := make(chan time.Time, 2)
	began := time.Now()
	r := afterRunning(1100*time.Millisecond, func() { fired <- time.Now() })
	at := <-fired
	if took := at.Sub(began); took < 1100*time.Millisecond || took > 3*time.Second {
		t.Errorf("fired after %v", took)
	}
	if r.stop() {
		t.Error("stop says that it came first")
	}
	r = afterRunning(20*time.Millisecond, func() { fired <- time.Now() })
	if !r.stop() || r.stop() {
		t.Error("the first stop comes first, the second does not")
	}
	select {
	case <-fired:
		t.Error("fired after stop")
	case <-time.After(60 * time.Millisecond):
	}
}
