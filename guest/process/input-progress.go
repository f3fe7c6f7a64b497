package process

// inputsRemembered is how many pieces of input a process knows by their ids. Whoever was cut off sends a whole call again:
// the largest, of 8 MiB, is 256 pieces, and another's input may have come in between.
const inputsRemembered = 1024

// inputProgress knows how much of each of the latest pieces of input has been written.
type inputProgress struct {
	ids   []string
	bytes map[string]int
}

func (i *inputProgress) knows(id string) bool {
	_, known := i.bytes[id]
	return known
}

func (i *inputProgress) written(id string) int { return i.bytes[id] }

// note remembers that n bytes of the piece id have been written.
func (i *inputProgress) note(id string, n int) {
	if id == "" {
		return
	}
	if !i.knows(id) {
		if i.bytes == nil {
			i.bytes = map[string]int{}
		}
		if len(i.ids) == inputsRemembered {
			delete(i.bytes, i.ids[0])
			i.ids = i.ids[1:]
		}
		i.ids = append(i.ids, id)
	}
	i.bytes[id] = n
}
