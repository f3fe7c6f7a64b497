package agent

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"torpor/guest/wire"
)

// follower follows a command as a client does that loses nothing: part after part, and again after a freeze.
type follower struct {
	result
	s      *sandbox
	execID string
	parts  int
	// onBytes is called with how much standard output there is so far.
	onBytes func(int)
}

func (s *sandbox) start(command string, torpor object) *stream {
	torpor["resumable"] = true
	return s.open("/process.Process/Start", object{"process": shell(command), "torpor": torpor}, nil)
}

func (f *follower) connect() *stream {
	f.s.t.Helper()
	st := f.tryConnect()
	if st == nil {
		f.s.t.Fatal("connecting failed")
	}
	return st
}

// tryConnect gives nil when the connection breaks before there is an answer, as a freeze may have it.
func (f *follower) tryConnect() *stream {
	encoded, err := json.Marshal(object{"process": object{"torpor": object{"execId": f.execID}},
		"torpor": object{"replay": true, "hold": true, "from": object{"stdout": len(f.stdout), "stderr": len(f.stderr), "pty": len(f.pty)}}})
	if err != nil {
		f.s.t.Fatal(err)
	}
	request, err := http.NewRequest("POST", f.s.url+"/process.Process/Connect", bytes.NewReader(wire.AppendEnvelope(nil, encoded)))
	if err != nil {
		f.s.t.Fatal(err)
	}
	request.Header.Set("X-Access-Token", testToken)
	request.Header.Set("Content-Type", "application/connect+json")
	response, err := f.s.client.Do(request)
	if err != nil {
		return nil
	}
	return &stream{f.s.t, response}
}

// read reads one stream and says whether it is to be gone on with: it said so, or it broke off.
func (f *follower) read(st *stream) (more, broke bool) {
	defer st.close()
	f.parts++
	for {
		message, last, err := st.next()
		if err != nil {
			return true, true
		}
		if last {
			f.fail, _ = message["error"].(object)
			return more, false
		}
		event := message["event"].(object)
		if _, ok := event["continue"]; ok {
			return true, false
		}
		f.add(event)
		if f.onBytes != nil {
			f.onBytes(len(f.stdout))
		}
	}
}

// rest reads to the end what must not break any more.
func (f *follower) rest(st *stream) {
	f.s.t.Helper()
	for {
		more, broke := f.read(st)
		if broke {
			f.s.t.Fatalf("a stream of %s broke off after %d bytes", f.execID, len(f.stdout))
		}
		if !more {
			return
		}
		st = f.connect()
	}
}

func numbers(upTo int) []byte {
	var b bytes.Buffer
	for n := 1; n <= upTo; n++ {
		b.WriteString(strconv.Itoa(n))
		b.WriteByte('\n')
	}
	return b.Bytes()
}

func (s *sandbox) freeze() {
	s.t.Helper()
	if status, answer := s.call("/torpor/freeze", object{}); status != 200 {
		s.t.Fatalf("freeze: %d %v", status, answer)
	}
}

// again unlocks a frozen sandbox with the changes said.
func (s *sandbox) again(change object) {
	s.t.Helper()
	change["previous_host_key"] = testHostKey
	if status, answer := s.init(change); status != 200 {
		s.t.Fatalf("init: %d %v", status, answer)
	}
}

// cutOff sends a call and leaves after a while. False when it was answered before.
func (s *sandbox) cutOff(path string, body object, after time.Duration) bool {
	s.t.Helper()
	encoded, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), after)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, "POST", s.url+path, bytes.NewReader(encoded))
	if err != nil {
		s.t.Fatal(err)
	}
	request.Header.Set("X-Access-Token", testToken)
	request.Header.Set("Content-Type", "application/json")
	response, err := s.client.Do(request)
	if err == nil {
		response.Body.Close()
	}
	return err != nil
}

func TestALongStreamComesInPartsAndWhole(t *testing.T) {
	s := newSandbox(t)
	f := &follower{s: s, execID: "parts"}
	f.rest(s.start("seq 1 1000000; seq 5 >&2; exit 3", object{"execId": "parts", "killOnDisconnect": true}))
	if !bytes.Equal(f.stdout, numbers(1000000)) || string(f.stderr) != "1\n2\n3\n4\n5\n" || f.exit() != 3 {
		t.Errorf("%d bytes, stderr %q, %v", len(f.stdout), f.stderr, f.end)
	}
	if f.parts < 4 || f.parts > 20 {
		t.Errorf("7 MB came in %d parts", f.parts)
	}
}

func TestAFreezeIsAPauseToWhoFollowsACommand(t *testing.T) {
	s := newSandbox(t)
	f := &follower{s: s, execID: "steady"}
	freezes := 0
	cut := make(chan struct{}, 8)
	f.onBytes = func(n int) {
		if n > (freezes+1)*600_000 && freezes < 4 {
			freezes++
			cut <- struct{}{}
			// Else all may have been read before the first freeze comes about.
			for tries := 0; tries < 100 && !s.agent.gate.Locked(); tries++ {
				time.Sleep(5 * time.Millisecond)
			}
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range cut {
			s.freeze()
			time.Sleep(50 * time.Millisecond)
			s.again(object{})
		}
	}()
	st := s.start("seq 1 600000; exit 4", object{"execId": "steady", "killOnDisconnect": true})
	breaks := 0
	for {
		more, broke := true, true
		if st != nil {
			more, broke = f.read(st)
		}
		locked := f.code() == "unavailable"
		if !more && !locked {
			break
		}
		if broke || locked {
			breaks++
			f.fail = nil
			eventually(t, "the sandbox is unlocked", func() bool { return !s.agent.gate.Locked() })
		}
		st = f.tryConnect()
	}
	close(cut)
	<-done
	if !bytes.Equal(f.stdout, numbers(600000)) {
		t.Errorf("%d bytes instead of %d", len(f.stdout), len(numbers(600000)))
	}
	if f.end == nil || f.exit() != 4 || f.torpor["lostBytes"] != nil || breaks == 0 {
		t.Errorf("%d breaks, end %v %v", breaks, f.end, f.fail)
	}
}

func TestACommandIsHeldUpWhileItsFollowerIsAway(t *testing.T) {
	s := newSandbox(t)
	st := s.start("seq 1 400000; touch "+filepath.Join(s.home, "through"), object{"execId": "held", "killOnDisconnect": true})
	if _, _, err := st.next(); err != nil {
		t.Fatal(err)
	}
	s.freeze()
	s.again(object{})
	time.Sleep(300 * time.Millisecond)
	if _, err := os.Stat(filepath.Join(s.home, "through")); err == nil {
		t.Error("2.7 MB went through with nobody there")
	}
	f := &follower{s: s, execID: "held"}
	f.rest(f.connect())
	if !bytes.Equal(f.stdout, numbers(400000)) || f.exit() != 0 {
		t.Errorf("%d bytes, %v", len(f.stdout), f.end)
	}
}

func TestInACopyACommandGoesOnWithNobody(t *testing.T) {
	s := newSandbox(t)
	through := filepath.Join(s.home, "through")
	st := s.start("seq 1 400000; touch "+through+"; exec sleep 300", object{"execId": "copied", "killOnDisconnect": true})
	if _, _, err := st.next(); err != nil {
		t.Fatal(err)
	}
	s.freeze()
	s.again(object{"sandbox_id": "sbx00000000000000000b"})
	eventually(t, "the command is through its output", func() bool { _, err := os.Stat(through); return err == nil })
	_, answer := s.call("/process.Process/List", object{})
	listed := answer["processes"].([]any)
	if len(listed) != 1 || listed[0].(object)["torpor"].(object)["execId"] != "copied" {
		t.Fatalf("listed: %v", listed)
	}
	// Whoever attaches and leaves is not whom it was started for.
	f := &follower{s: s, execID: "copied"}
	f.connect().close()
	time.Sleep(100 * time.Millisecond)
	if pid := int(listed[0].(object)["pid"].(float64)); !alive(pid) {
		t.Error("the command was ended")
	}
	s.call("/process.Process/SendSignal", object{"process": object{"torpor": object{"execId": "copied"}}, "signal": 9})
}

func TestAfterASleepACommandIsNobodysForeground(t *testing.T) {
	s := newSandbox(t)
	st := s.start("echo $$; exec sleep 300", object{"execId": "slept", "killOnDisconnect": true})
	for f := (&follower{}); len(f.stdout) == 0; {
		message, _, err := st.next()
		if err != nil {
			t.Fatal(err)
		}
		f.add(message["event"].(object))
	}
	s.freeze()
	s.again(object{"generation": 2})
	f := &follower{s: s, execID: "slept"}
	st = f.connect()
	for len(f.stdout) == 0 {
		message, _, err := st.next()
		if err != nil {
			t.Fatal(err)
		}
		f.add(message["event"].(object))
	}
	st.close()
	time.Sleep(100 * time.Millisecond)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(f.stdout)))
	if !alive(pid) {
		t.Error("the command was ended when its follower left")
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
}

func TestAClientThatLeavesAResumableStreamEndsItsCommand(t *testing.T) {
	s := newSandbox(t)
	st := s.start("echo $$; exec sleep 300", object{"execId": "left", "killOnDisconnect": true})
	f := &follower{}
	for len(f.stdout) == 0 {
		message, _, err := st.next()
		if err != nil {
			t.Fatal(err)
		}
		f.add(message["event"].(object))
	}
	if r := (&follower{s: s, execID: "left"}).connect().collect(); r.code() != "failed_precondition" {
		t.Errorf("another took the seat: %v", r.fail)
	}
	st.close()
	pid, _ := strconv.Atoi(strings.TrimSpace(string(f.stdout)))
	eventually(t, "the command is ended", func() bool { return !alive(pid) })
	if r := s.open("/process.Process/Start", object{"process": shell("true"), "torpor": object{"resumable": true}}, nil).collect(); r.code() != "invalid_argument" {
		t.Errorf("resumable without execId: %v", r.fail)
	}
}

func TestASecondStartGoesOnWithOneThatWasCut(t *testing.T) {
	s := newSandbox(t)
	command, torpor := "echo once >>"+filepath.Join(s.home, "ran")+"; seq 1 100; sleep 0.3", object{"execId": "again", "killOnDisconnect": true}
	st := s.start(command, torpor)
	if _, _, err := st.next(); err != nil {
		t.Fatal(err)
	}
	s.freeze()
	s.again(object{})
	f := &follower{s: s, execID: "again"}
	f.rest(s.start(command, torpor))
	if !bytes.Equal(f.stdout, numbers(100)) || f.exit() != 0 || s.get("home/user/ran") != "once\n" {
		t.Errorf("stdout %q, %v, ran %q", f.stdout, f.end, s.get("home/user/ran"))
	}
}

func TestInputThatIsSentAgainIsWrittenOnce(t *testing.T) {
	s := newSandbox(t)
	st := s.open("/process.Process/Start", object{"process": shell("sleep 0.5; cat"), "stdin": true, "torpor": object{"execId": "fed", "resumable": true}}, nil)
	if _, _, err := st.next(); err != nil {
		t.Fatal(err)
	}
	fed := object{"torpor": object{"execId": "fed"}}
	send := func(id, text string) (int, object) {
		return s.call("/process.Process/SendInput", object{"process": fed, "torpor": object{"inputId": id},
			"input": object{"stdin": base64.StdEncoding.EncodeToString([]byte(text))}})
	}
	for range 3 {
		if status, answer := send("a", "hello "); status != 200 {
			t.Fatalf("%v", answer)
		}
	}
	// More than the pipe takes: it is cut in the middle, and goes on where it was.
	large := strings.Repeat("0123456789", 20_000)
	cut := s.cutOff("/process.Process/SendInput", object{"process": fed, "torpor": object{"inputId": "b"},
		"input": object{"stdin": base64.StdEncoding.EncodeToString([]byte(large))}}, 200*time.Millisecond)
	if !cut {
		t.Fatal("the pipe took it whole")
	}
	if status, answer := send("b", large); status != 200 {
		t.Fatalf("%v", answer)
	}
	// As many pieces as the largest call has, sent again from the first.
	pieces := ""
	for range 2 {
		pieces = ""
		for i := range 256 {
			piece := fmt.Sprintf("%d,", i)
			if status, answer := send(fmt.Sprintf("c:%d", i), piece); status != 200 {
				t.Fatalf("%v", answer)
			}
			pieces += piece
		}
	}
	closed := object{"process": fed, "torpor": object{"inputId": "c:close"}}
	if status, answer := s.call("/process.Process/CloseStdin", closed); status != 200 {
		t.Fatalf("%v", answer)
	}
	f := &follower{s: s, execID: "fed"}
	f.rest(st)
	if string(f.stdout) != "hello "+large+pieces {
		t.Errorf("%d bytes instead of %d", len(f.stdout), 6+len(large)+len(pieces))
	}
	// What was done before the end is answered as done after it, and nothing else is.
	if status, answer := send("c:255", "255,"); status != 200 {
		t.Errorf("the last piece, again: %v", answer)
	}
	if status, answer := s.call("/process.Process/CloseStdin", closed); status != 200 {
		t.Errorf("the close, again: %v", answer)
	}
	if _, answer := send("d", "more"); answer["code"] != "not_found" {
		t.Errorf("new input after the end: %v", answer)
	}
	for _, message := range []object{{"process": fed}, {"process": fed, "torpor": object{"inputId": "d"}}} {
		if _, answer := s.call("/process.Process/CloseStdin", message); answer["code"] != "not_found" {
			t.Errorf("a new close after the end: %v", answer)
		}
	}
}

func TestALimitOfTimeHoldsAsBefore(t *testing.T) {
	s := newSandbox(t)
	began := time.Now()
	r := s.exec("sleep 30", object{"timeoutMs": 1300})
	if took := time.Since(began); r.torpor["outcome"] != "timed_out" || took < 1200*time.Millisecond || took > 8*time.Second {
		t.Errorf("%v after %v", r.torpor, took)
	}
}
