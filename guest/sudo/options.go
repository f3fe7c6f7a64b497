package sudo

import (
	"fmt"
	"strings"
)

// mode is what a command line asks for besides running a command.
type mode int

const (
	modeRun mode = iota
	modeHelp
	modeVersion
	modeList
	modeNothing // -k, -K, -v: there is no password to forget or to refresh
)

// parse reads sudo's command line. Options about passwords are accepted and mean nothing.
func parse(args []string) (request, mode, error) {
	q := request{User: "root"}
	m := modeRun
	i := 0
	value := func(name, inline string) (string, error) {
		if inline != "" {
			return inline, nil
		}
		if i+1 >= len(args) {
			return "", fmt.Errorf("option requires an argument -- '%s'", name)
		}
		i++
		return args[i], nil
	}
options:
	for ; i < len(args); i++ {
		arg := args[i]
		switch {
		case arg == "--":
			i++
			break options
		case strings.HasPrefix(arg, "--"):
			name, inline, hasValue := strings.Cut(arg[2:], "=")
			var err error
			switch name {
			case "user":
				q.User, err = value(name, inline)
			case "preserve-env":
				if hasValue {
					q.Preserve = append(q.Preserve, strings.Split(inline, ",")...)
				} else {
					q.PreserveAll = true
				}
			case "login":
				q.Login = true
			case "shell":
				q.Shell = true
			case "set-home":
				q.SetHome = true
			case "background":
				q.Background = true
			case "chdir":
				q.Dir, err = value(name, inline)
			case "group", "prompt", "close-from", "command-timeout", "host", "other-user", "role", "type":
				_, err = value(name, inline)
			case "non-interactive", "stdin", "askpass", "bell", "preserve-groups", "no-update":
			case "list":
				m = modeList
			case "validate", "reset-timestamp", "remove-timestamp":
				m = modeNothing
			case "help":
				m = modeHelp
			case "version":
				m = modeVersion
			default:
				err = fmt.Errorf("unrecognized option '%s'", arg)
			}
			if err != nil {
				return q, m, err
			}
		case len(arg) > 1 && arg[0] == '-':
			if err := parseShort(arg[1:], &q, &m, value); err != nil {
				return q, m, err
			}
		case isAssignment(arg):
			q.Set = append(q.Set, arg)
		default:
			break options
		}
	}
	for ; i < len(args) && isAssignment(args[i]); i++ {
		q.Set = append(q.Set, args[i])
	}
	q.Argv = args[i:]
	if m == modeNothing && len(q.Argv) > 0 {
		m = modeRun
	}
	if m == modeRun && len(q.Argv) == 0 && !q.Login && !q.Shell {
		return q, m, fmt.Errorf("no command was given")
	}
	return q, m, nil
}

func parseShort(letters string, q *request, m *mode, value func(name, inline string) (string, error)) error {
	for at := 0; at < len(letters); at++ {
		switch c := letters[at]; c {
		case 'E':
			q.PreserveAll = true
		case 'H':
			q.SetHome = true
		case 'i':
			q.Login = true
		case 's':
			q.Shell = true
		case 'b':
			q.Background = true
		case 'n', 'S', 'A', 'B', 'P', 'N':
		case 'k', 'K', 'v':
			*m = modeNothing
		case 'l':
			*m = modeList
		case 'h':
			*m = modeHelp
		case 'V':
			*m = modeVersion
		case 'u', 'g', 'p', 'C', 'T', 'U', 'D', 'r', 't':
			given, err := value(string(c), letters[at+1:])
			switch c {
			case 'u':
				q.User = given
			case 'D':
				q.Dir = given
			}
			return err
		case 'e', 'R':
			return fmt.Errorf("option -%c is not supported in a sandbox", c)
		default:
			return fmt.Errorf("invalid option -- '%c'", c)
		}
	}
	return nil
}

func isAssignment(arg string) bool {
	name, _, ok := strings.Cut(arg, "=")
	if !ok || name == "" || name[0] >= '0' && name[0] <= '9' {
		return false
	}
	for i := 0; i < len(name); i++ {
		c := name[i]
		if !(c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9') {
			return false
		}
	}
	return true
}
