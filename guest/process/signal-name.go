package process

import (
	"encoding/json"
	"strconv"
	"strings"
	"syscall"

	"torpor/guest/wire"
)

var signalNames = [...]string{1: "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
	"STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS"}

// SignalName is a signal's name with its prefix, such as SIGKILL.
func SignalName(signal syscall.Signal) string {
	if n := int(signal); n > 0 && n < len(signalNames) {
		return "SIG" + signalNames[n]
	}
	return "SIGRTMIN+" + strconv.Itoa(int(signal)-34)
}

// signalField is a protocol signal: SIGNAL_SIGTERM and SIGNAL_SIGKILL of E2B or their numbers, and in the same form
// every other signal of Linux.
type signalField syscall.Signal

// UnmarshalJSON reads a name or a number.
func (s *signalField) UnmarshalJSON(text []byte) error {
	var number int
	if json.Unmarshal(text, &number) == nil && number > 0 && number < len(signalNames) {
		*s = signalField(number)
		return nil
	}
	var name string
	_ = json.Unmarshal(text, &name)
	bare := strings.TrimPrefix(strings.TrimPrefix(name, "SIGNAL_"), "SIG")
	for n, known := range signalNames {
		if known != "" && known == bare {
			*s = signalField(n)
			return nil
		}
	}
	return wire.Errorf(wire.InvalidArgument, "field signal is %s; give SIGNAL_SIGTERM, SIGNAL_SIGKILL or another signal's name", text)
}
