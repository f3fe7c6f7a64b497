package wire

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Bytes is a proto3 JSON bytes field: any base64 alphabet, padded or not.
type Bytes []byte

// UnmarshalJSON reads base64 text; null is nil.
func (b *Bytes) UnmarshalJSON(text []byte) error {
	var encoded *string
	if err := json.Unmarshal(text, &encoded); err != nil {
		return err
	}
	if encoded == nil {
		*b = nil
		return nil
	}
	decoded, err := DecodeBase64(*encoded)
	if err != nil {
		return err
	}
	*b = decoded
	return nil
}

// DecodeBase64 accepts the standard and the URL alphabet, with or without padding.
func DecodeBase64(encoded string) ([]byte, error) {
	encoded = strings.TrimRight(encoded, "=")
	alphabet := base64.RawStdEncoding
	if strings.ContainsAny(encoded, "-_") {
		alphabet = base64.RawURLEncoding
	}
	decoded := make([]byte, alphabet.DecodedLen(len(encoded)))
	n, err := alphabet.Decode(decoded, []byte(encoded))
	if err != nil {
		return nil, fmt.Errorf("not base64: %w", err)
	}
	return decoded[:n], nil
}

// Uint32 is a proto3 JSON unsigned number: a number or its decimal text.
type Uint32 uint32

// UnmarshalJSON reads a number or text; null is zero.
func (u *Uint32) UnmarshalJSON(text []byte) error {
	s := strings.Trim(string(text), `"`)
	if s == "null" {
		*u = 0
		return nil
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return fmt.Errorf("%s is not a number from 0 to 4294967295", text)
	}
	*u = Uint32(n)
	return nil
}
