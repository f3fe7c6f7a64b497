package process

// Freeze is to be called before a freeze closes the streams: they are cut off then, not left.
func (t *Table) Freeze() {
	t.mu.Lock()
	t.freezes++
	t.frozen = true
	t.mu.Unlock()
}

// Awakening says what a machine that is unlocked is to what was frozen.
type Awakening int

// The kinds of awakening.
const (
	// SameMachine was only frozen: whoever was attached comes back.
	SameMachine Awakening = iota
	// WokenMachine has slept: those who were attached have been told, and may come back.
	WokenMachine
	// CopiedMachine is another one than was frozen: those who were attached are attached to the other.
	CopiedMachine
)

// Thaw is to be called before the gate opens. What ran goes on, also where those who started it are gone with the sleep or
// belong to the machine that was copied.
func (t *Table) Thaw(as Awakening) {
	t.mu.Lock()
	t.frozen = false
	t.mu.Unlock()
	if as == SameMachine {
		return
	}
	running, ended := t.snapshot()
	for _, p := range append(running, ended...) {
		p.disowned.Store(true)
		if as == CopiedMachine {
			p.seat.clear()
		}
	}
}

// epoch changes with every freeze: a stream of an earlier one has been cut.
func (t *Table) epoch() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.freezes
}

func (t *Table) isFrozen() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.frozen
}
