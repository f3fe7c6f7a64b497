package agent

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// watched gives the events of a watch up to the first that says end.
func (s *sandbox) watched(st *stream, end string) []string {
	s.t.Helper()
	var seen []string
	for {
		message, last, err := st.next()
		if err != nil || last {
			s.t.Fatalf("waiting for %s: %v %v, after %v", end, message, err, seen)
		}
		e, ok := message["filesystem"].(object)
		if !ok {
			continue
		}
		event := strings.TrimPrefix(e["type"].(string), "EVENT_TYPE_") + " " + e["name"].(string)
		if seen = append(seen, event); event == end {
			return seen
		}
	}
}

func TestWatchersSeeAnUploadAsTheWritingOfItsFile(t *testing.T) {
	s := newSandbox(t)
	s.put("home/user/w/old", "1")
	st := s.open(fsCall+"WatchDir", object{"path": "w", "recursive": true}, nil)
	defer st.close()
	upload := func(name string) {
		t.Helper()
		if status, answer := s.fetch("POST", filesURL("w/"+name), strings.NewReader("x"), octets); status != 200 {
			t.Fatal(answer)
		}
	}
	upload("old")
	if seen := s.watched(st, "WRITE old"); len(seen) != 1 {
		t.Errorf("a replaced file: %v", seen)
	}
	upload("new")
	if seen := s.watched(st, "WRITE new"); strings.Join(seen, ",") != "CREATE new,WRITE new" {
		t.Errorf("a new file: %v", seen)
	}
	upload("folder/inner")
	for _, event := range s.watched(st, "WRITE folder/inner") {
		if strings.Contains(event, ".torpor") {
			t.Errorf("a part is shown: %s", event)
		}
	}
}

func TestAWatchEndsAtItsLimit(t *testing.T) {
	s := newSandbox(t)
	st := s.open(fsCall+"WatchDir", object{"path": ""}, map[string]string{"Connect-Timeout-Ms": "50"})
	defer st.close()
	for {
		message, last, err := st.next()
		if err != nil {
			t.Fatal(err)
		}
		if last {
			if message["error"].(object)["code"] != "deadline_exceeded" {
				t.Error(message)
			}
			return
		}
	}
}

func TestRelativePathsStartInTheHomeOfTheCallsUser(t *testing.T) {
	s := newLocked(t)
	if status, answer := s.init(object{"default_workdir": s.root}); status != 200 {
		t.Fatal(answer)
	}
	s.put("home/user/f", "x")
	if _, answer := s.call(fsCall+"Stat", object{"path": "f"}); answer["entry"] == nil {
		t.Error(answer)
	}
	if _, answer := s.call(fsCall+"ListDir", object{"path": ""}); !strings.HasPrefix(answer["entries"].([]any)[0].(object)["path"].(string), s.root+"/") {
		t.Error(answer)
	}
}

func TestComposing(t *testing.T) {
	s := newSandbox(t)
	s.put("home/user/1", strings.Repeat("a", 100_000))
	s.put("home/user/2", "")
	s.put("home/user/3", "c")
	json := map[string]string{"Content-Type": "application/json", "X-Access-Token": testToken}
	compose := func(body string) (int, string) {
		return s.fetch("POST", "/files/compose", bytes.NewReader([]byte(body)), json)
	}
	for body, status := range map[string]int{
		`{"source_paths":[],"destination":"d"}`:                       400,
		`{"source_paths":["1"]}`:                                      400,
		`{"source_paths":["1","missing"],"destination":"d"}`:          404,
		`{"source_paths":["1","./d"],"destination":"d"}`:              400,
		`{"source_paths":["/"],"destination":"d"}`:                    400,
		`{"source_paths":["1"],"destination":"d","username":"ghost"}`: 401,
	} {
		if got, answer := compose(body); got != status {
			t.Errorf("%s: %d %s", body, got, answer)
		}
	}
	status, answer := compose(`{"source_paths":["1","2","3"],"destination":"d/all"}`)
	if status != 200 || answer != `{"name":"all","path":"`+s.home+`/d/all","type":"file"}` {
		t.Errorf("%d %s", status, answer)
	}
	if got := s.get("home/user/d/all"); got != strings.Repeat("a", 100_000)+"c" {
		t.Errorf("%d bytes", len(got))
	}
	if _, err := os.Stat(filepath.Join(s.home, "1")); err == nil {
		t.Error("a source is left")
	}
}
