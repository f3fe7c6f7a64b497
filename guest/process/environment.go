package process

import (
	"sort"
	"strings"

	"torpor/guest/account"
	"torpor/guest/spawn"
)

// environment is what a user's process gets: the account's own variables, then the sandbox's, then the call's.
func environment(user *account.User, sandbox, call map[string]string) map[string]string {
	env := map[string]string{
		"PATH":    spawn.DefaultPath,
		"HOME":    user.Home,
		"USER":    user.Name,
		"LOGNAME": user.Name,
	}
	for k, v := range sandbox {
		env[k] = v
	}
	for k, v := range call {
		env[k] = v
	}
	return env
}

// environ is the list form, in a fixed order.
func environ(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	sort.Strings(list)
	return list
}

// badVariable says why a variable cannot be passed on, or nothing.
func badVariable(name, value string) string {
	switch {
	case name == "" || strings.Contains(name, "="):
		return "its name is empty or holds '='"
	case strings.ContainsRune(name, 0) || strings.ContainsRune(value, 0):
		return "it holds a NUL byte"
	}
	return ""
}
