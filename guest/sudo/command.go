package sudo

import (
	"sort"
	"strconv"
	"strings"

	"torpor/guest/account"
	"torpor/guest/spawn"
)

// keptAlways are the caller's variables that the real sudo lets through by itself on Debian, and proxies, without which
// a package manager in a sandbox is cut off.
var keptAlways = []string{"TERM", "COLORTERM", "LANG", "LANGUAGE", "LS_COLORS", "DISPLAY", "XAUTHORITY", "TZ", "DEBIAN_FRONTEND",
	"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"}

func targetEnv(q *request, caller, target *account.User, sandbox map[string]string) []string {
	env := map[string]string{}
	for name, value := range sandbox {
		env[name] = value
	}
	kept := map[string]bool{}
	for _, name := range append(keptAlways, q.Preserve...) {
		kept[name] = true
	}
	home := ""
	for _, v := range q.Env {
		name, value, _ := strings.Cut(v, "=")
		if name == "HOME" {
			home = value
		}
		if q.PreserveAll || kept[name] || strings.HasPrefix(name, "LC_") {
			env[name] = value
		}
	}
	env["USER"], env["LOGNAME"], env["SHELL"], env["HOME"] = target.Name, target.Name, shellOf(target), target.Home
	if home != "" && (q.PreserveAll || kept["HOME"]) && !q.SetHome && !q.Login {
		env["HOME"] = home
	}
	if !kept["PATH"] {
		env["PATH"] = spawn.DefaultPath
	}
	env["SUDO_USER"], env["SUDO_UID"], env["SUDO_GID"] = caller.Name, strconv.Itoa(int(caller.UID)), strconv.Itoa(int(caller.GID))
	env["SUDO_COMMAND"] = strings.Join(q.Argv, " ")
	for _, v := range q.Set {
		name, value, _ := strings.Cut(v, "=")
		env[name] = value
	}
	list := make([]string, 0, len(env))
	for name, value := range env {
		if name != "" {
			list = append(list, name+"="+value)
		}
	}
	sort.Strings(list)
	return list
}

func shellOf(user *account.User) string {
	if user.Shell == "" {
		return "/bin/sh"
	}
	return user.Shell
}

// commandOf is the program and its arguments: the command itself, or a shell that is to run it.
func commandOf(q *request, target *account.User, env []string) (path string, argv []string) {
	if !q.Login && !q.Shell {
		if len(q.Argv) == 0 {
			return "", nil
		}
		return q.Argv[0], q.Argv
	}
	path = shellOf(target)
	if q.Shell && !q.Login {
		for _, v := range q.Env {
			if rest, ok := strings.CutPrefix(v, "SHELL="); ok && rest != "" {
				path = rest
			}
		}
	}
	name := path
	if q.Login {
		name = "-" + path[strings.LastIndexByte(path, '/')+1:]
	}
	argv = []string{name}
	if len(q.Argv) > 0 {
		words := make([]string, len(q.Argv))
		for i, word := range q.Argv {
			words[i] = escape(word)
		}
		argv = append(argv, "-c", strings.Join(words, " "))
	}
	return path, argv
}

// escape keeps a word one word in a shell, as sudo does: a backslash before all but letters, digits, _ - and $.
func escape(word string) string {
	var b strings.Builder
	for i := 0; i < len(word); i++ {
		c := word[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '$' || c >= 0x80) {
			if c == '\n' {
				b.WriteString("'\n'")
				continue
			}
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	if word == "" {
		return "''"
	}
	return b.String()
}
