package process

import "testing"

func TestSoleProgramOnlyWhenCertain(t *testing.T) {
	for command, want := range map[string]string{
		"python3 x.py": "python3", "  ls -la /tmp ": "ls", "/usr/bin/env": "/usr/bin/env", `python3 -c 'print("a; b")'`: "python3", `echo "a b"`: "echo", "ls\n": "ls",
		"": "", "A=1 ls": "", "ls; ls": "", "ls | wc": "", "ls > f": "", "ls &": "", "$X": "", "`ls`": "", "if": "", "time ls": "", "! ls": "", "(ls)": "", "ls\nls": "",
		`"ls" -l`: "", "'ls'": "", "./x": "", "dir/x": "", "~/x": "", "ls *": "", "echo $HOME": "", `echo "$HOME"`: "", "echo 'open": "", `echo "open`: "", "# x": "", "-x": "",
		`echo a\ b`: "", "a=b": "", "ls #c": "", "{ ls": "", "[ x": "", `echo "a!b"`: "",
	} {
		if got := soleProgram(command); got != want {
			t.Errorf("%q: %q, want %q", command, got, want)
		}
	}
}

func TestWarmDifference(t *testing.T) {
	was := map[string]string{"PATH": "/bin", "A": "1", "B": "2"}
	export, unset, possible := warmDifference(was, map[string]string{"PATH": "/bin", "A": "x", "C": "3"})
	if !possible || len(export) != 2 || export["A"] != "x" || export["C"] != "3" || len(unset) != 1 || unset[0] != "B" {
		t.Errorf("%v %v %v", export, unset, possible)
	}
	for name, value := range map[string]string{"PATH": "/usr/bin", "HOME": "/x", "LD_PRELOAD": "x", "BASH_ENV": "x", "IFS": "", "a b": "", "1A": "", "A-B": "", "__torpor_exec": "x"} {
		want := map[string]string{"PATH": "/bin", "A": "1", "B": "2"}
		want[name] = value
		if _, _, possible := warmDifference(was, want); possible {
			t.Errorf("%s was taken as changeable in a shell that has read its profile", name)
		}
	}
}
