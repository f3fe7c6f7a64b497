package process

import (
	"crypto/rand"
	"encoding/binary"
	"os"
	"strconv"
	"strings"
)

// The descriptors a warm shell waits on: above those that profiles use, below those that bash takes for itself.
const (
	warmControlFD = 9
	warmStdinFD   = 8
	warmReadyFD   = 7
)

// warmStub is the command of a waiting login shell. The profile has been read when it runs, which the end of the ready
// pipe tells. It then waits for a
// script on the control pipe, which sets the stage and puts the user's command where bash keeps the text of
// `-c`. Sourcing reads the pipe in large pieces (bash's read takes one byte a system call), and eval treats the text
// as `-c` does: exit, exec, traps, set -e and return behave the same.
// An empty or missing script ends the shell.
// Before it waits, it runs the kinds of commands that such a script has, to no effect: each page that a process touches
// first costs a fault of some 12 us, here paid while nobody waits. A command took 5.5 ms without, and takes 3.7 with it.
const warmStub = `. /dev/null; eval "` + warmRehearsal + `"; exec 7>&-; BASH_EXECUTION_STRING=; . /dev/fd/9 || exit 125; eval "$__torpor_exec$BASH_EXECUTION_STRING"`

const warmRehearsal = `export __torpor_w='x'; unset __torpor_w; builtin cd -P -- .; unset OLDPWD; ` +
	`hash ls 2>/dev/null && [[ -n \${BASH_CMDS[ls]} ]] && hash -r; echo >/dev/null`

// warmUse is one command for a warm shell.
type warmUse struct {
	arg0    string
	command string
	dir     string
	export  map[string]string
	unset   []string
	stdin   bool
}

// warmScript is the text that turns a waiting shell into `bash -l -c command` in the wanted surroundings.
func warmScript(use warmUse) []byte {
	var b strings.Builder
	b.Grow(len(use.command) + 512)
	b.WriteString("exec 9<&- ")
	if use.stdin {
		b.WriteString("<&8 ")
	}
	b.WriteString("8<&-\n")
	if use.dir != "" {
		b.WriteString("builtin cd -P -- ")
		quote(&b, use.dir)
		b.WriteString(" || builtin exit 126\nunset OLDPWD\n")
	}
	for _, name := range use.unset {
		b.WriteString("unset ")
		b.WriteString(name)
		b.WriteByte('\n')
	}
	for _, v := range environ(use.export) {
		name, value, _ := strings.Cut(v, "=")
		b.WriteString("export ")
		b.WriteString(name)
		b.WriteByte('=')
		quote(&b, value)
		b.WriteByte('\n')
	}
	if use.arg0 != "/bin/bash" {
		b.WriteString("BASH_ARGV0=")
		quote(&b, use.arg0)
		b.WriteByte('\n')
	}
	// The shell may exist in several restored copies of one snapshot: none may continue the same sequence.
	var seed [4]byte
	_, _ = rand.Read(seed[:])
	if name, err := os.Hostname(); err == nil { // bash read it when it started, maybe as another machine
		b.WriteString("HOSTNAME=")
		quote(&b, name)
		b.WriteByte('\n')
	}
	b.WriteString("SECONDS=0 RANDOM=")
	b.WriteString(strconv.FormatUint(uint64(binary.LittleEndian.Uint32(seed[:])>>1), 10))
	b.WriteByte('\n')
	if program := soleProgram(use.command); program != "" {
		// bash -c executes a lone command in its own place; eval would fork first, which is dear in gVisor.
		if strings.HasPrefix(program, "/") {
			b.WriteString("[[ -f " + program + " && -x " + program + " ]] && __torpor_exec='exec '\n")
		} else {
			b.WriteString("hash " + program + " 2>/dev/null; [[ -n ${BASH_CMDS[" + program + "]} ]] && __torpor_exec='exec '\n")
		}
	}
	b.WriteString("BASH_EXECUTION_STRING=") // last: an assignment succeeds, and so does the script
	quote(&b, use.command)
	b.WriteByte('\n')
	return []byte(b.String())
}

func quote(b *strings.Builder, text string) {
	b.WriteByte('\'')
	for {
		before, after, found := strings.Cut(text, "'")
		b.WriteString(before)
		if !found {
			break
		}
		b.WriteString(`'\''`)
		text = after
	}
	b.WriteByte('\'')
}

var shellWords = map[string]bool{
	"if": true, "then": true, "else": true, "elif": true, "fi": true, "case": true, "esac": true, "for": true,
	"select": true, "while": true, "until": true, "do": true, "done": true, "in": true, "function": true,
	"time": true, "coproc": true,
}

// soleProgram gives the first word of a command that is certainly one simple command without redirections,
// assignments before it or substitutions of commands; otherwise nothing. Doubt means nothing.
func soleProgram(command string) string {
	command = strings.TrimRight(command, " \t\n")
	program := ""
	for i := 0; i < len(command); i++ {
		switch c := command[i]; {
		case c == '\'':
			end := strings.IndexByte(command[i+1:], '\'')
			if program == "" || end < 0 {
				return ""
			}
			i += end + 1
		case c == '"':
			end := strings.IndexAny(command[i+1:], "\"$`\\!")
			if program == "" || end < 0 || command[i+1+end] != '"' {
				return ""
			}
			i += end + 1
		case c == ' ' || c == '\t':
			if program == "" {
				program = strings.TrimLeft(command[:i], " \t")
			}
		case isPlain(c):
		default:
			return ""
		}
	}
	if program == "" {
		program = strings.TrimLeft(command, " \t")
	}
	if program == "" || program[0] == '-' || strings.ContainsAny(program, "=,:%+@") || shellWords[program] {
		return ""
	}
	if program[0] != '/' && strings.Contains(program, "/") {
		return "" // exec would give a script its absolute path as $0
	}
	return program
}

func isPlain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("_./:=,@%+-", c) >= 0
}

// warmDifference says how to turn a shell started with the environment was into one with the environment want,
// or that it cannot be done because bash or the profile gives a variable a meaning of its own.
func warmDifference(was, want map[string]string) (export map[string]string, unset []string, possible bool) {
	export = map[string]string{}
	for name, value := range want {
		if old, ok := was[name]; ok && old == value {
			continue
		}
		if !changeable(name) {
			return nil, nil, false
		}
		export[name] = value
	}
	for name := range was {
		if _, ok := want[name]; !ok {
			if !changeable(name) {
				return nil, nil, false
			}
			unset = append(unset, name)
		}
	}
	return export, unset, true
}

var profileVariables = map[string]bool{
	"PATH": true, "HOME": true, "USER": true, "LOGNAME": true, "SHELL": true, "ENV": true, "SHELLOPTS": true, "IFS": true,
	"PS4": true, "POSIXLY_CORRECT": true, "PWD": true, "OLDPWD": true, "SHLVL": true, "RANDOM": true, "SRANDOM": true, "SECONDS": true,
	"LINENO": true, "UID": true, "EUID": true, "PPID": true, "GROUPS": true, "DIRSTACK": true, "FUNCNAME": true, "PIPESTATUS": true,
	"OPTIND": true, "OPTARG": true, "OPTERR": true, "HOSTNAME": true, "HOSTTYPE": true, "OSTYPE": true, "MACHTYPE": true, "TMOUT": true,
	"CDPATH": true, "GLOBIGNORE": true, "IGNOREEOF": true, "COMP_WORDBREAKS": true, "_": true, "PS1": true, "XDG_CONFIG_HOME": true,
}

func changeable(name string) bool {
	if name == "" || profileVariables[name] || strings.HasPrefix(name, "BASH") || strings.HasPrefix(name, "LD_") ||
		strings.HasPrefix(name, "EPOCH") || strings.HasPrefix(name, "HIST") || strings.HasPrefix(name, "__torpor") {
		return false
	}
	for i := 0; i < len(name); i++ {
		c := name[i]
		if !(c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || i > 0 && c >= '0' && c <= '9') {
			return false
		}
	}
	return true
}
