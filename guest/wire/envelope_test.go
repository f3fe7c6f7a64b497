package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

func TestEnvelopesSurviveTheTrip(t *testing.T) {
	for _, size := range []int{0, 1, 5, 65535, 65536, 65537, 1 << 20} {
		body := bytes.Repeat([]byte{'a'}, size)
		framed := AppendEnvelope(nil, body)
		for name, r := range map[string]io.Reader{"whole": bytes.NewReader(framed), "byte by byte": iotest.OneByteReader(bytes.NewReader(framed[:min(len(framed), 2000)]))} {
			if name != "whole" && len(framed) > 2000 {
				continue
			}
			got, err := ReadEnvelope(r)
			if err != nil || !bytes.Equal(got, body) {
				t.Errorf("%d bytes, %s: %d bytes, %v", size, name, len(got), err)
			}
		}
	}
}

func TestBrokenEnvelopesAreNamed(t *testing.T) {
	for name, c := range map[string]struct {
		input string
		code  Code
	}{
		"half a header":  {"\x00\x00", InvalidArgument},
		"half a body":    {"\x00\x00\x00\x00\x09{}", InvalidArgument},
		"no body":        {"\x00\x00\x00\x00\x01", InvalidArgument},
		"too large":      {"\x00\xff\xff\xff\xff{}", ResourceExhausted},
		"compressed":     {"\x01\x00\x00\x00\x02{}", Unimplemented},
		"just too large": {"\x00\x01\x00\x00\x01", ResourceExhausted},
	} {
		_, err := ReadEnvelope(bytes.NewReader([]byte(c.input)))
		var e *Error
		if !errors.As(err, &e) || e.Code != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, ended := range []string{"", "\x02\x00\x00\x00\x02{}"} {
		if _, err := ReadEnvelope(bytes.NewReader([]byte(ended))); err != io.EOF {
			t.Errorf("%q: %v", ended, err)
		}
	}
}

// FuzzReadEnvelope checks that no input makes the parser give more than came, loop, or panic.
func FuzzReadEnvelope(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x00\x02{}"))
	f.Add([]byte("\x00\x00\xff\xff\xff{}"))
	f.Add([]byte("\x02\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, input []byte) {
		r := bytes.NewReader(input)
		for range len(input) + 1 {
			before := r.Len()
			body, err := ReadEnvelope(r)
			if err != nil {
				return
			}
			if len(body)+5 != before-r.Len() {
				t.Fatalf("%d bytes given for %d read", len(body), before-r.Len())
			}
		}
		t.Fatal("no end")
	})
}

func TestBase64OfEveryKind(t *testing.T) {
	for _, text := range []string{"//79", "__79", "//79====", "-_8=", "+/8"} {
		if _, err := DecodeBase64(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{"a", "a b c d", "+_aa", "%%%%"} {
		if _, err := DecodeBase64(text); err == nil {
			t.Errorf("%s was taken", text)
		}
	}
	var b Bytes
	if err := b.UnmarshalJSON([]byte("17")); err == nil {
		t.Error("a number was taken as bytes")
	}
}
