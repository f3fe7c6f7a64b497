package process

import (
	"os"
	"testing"
	"time"

	"torpor/guest/account"
	"torpor/guest/reaper"
)

func TestTakingTheLastShellStartsTheNextAtOnce(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("shells of another user need root")
	}
	accounts := account.Open("/etc/passwd", "/etc/group")
	table := NewTable(reaper.New(), accounts, func() Settings { return Settings{DefaultUser: "root"} }, func(int) {})
	shells := table.Shells()
	shells.Keep(2)
	defer shells.close()
	user, err := accounts.Lookup("root")
	if err != nil {
		t.Fatal(err)
	}
	shells.mu.Lock()
	shells.filling = true // the refill that waits for a pause never comes
	shells.mu.Unlock()
	for _, left := range []int{1, 1} { // of two one is left; of one none, until the next is started
		w, _, _ := shells.take(user, environment(user, nil, nil))
		if w == nil {
			t.Fatal("no shell waits")
		}
		w.end()
		for deadline := time.Now().Add(20 * time.Second); shells.Ready() != left; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d shells wait, not %d", shells.Ready(), left)
			}
		}
	}
}
