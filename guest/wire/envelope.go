package wire

import (
	"encoding/binary"
	"encoding/json"
	"io"
)

// Limits of what one request may hold in memory.
const (
	// MessageBytesMax bounds one JSON message: a command or standard input of several MiB fits.
	MessageBytesMax = 16 << 20
	flagCompressed  = 0x01
	flagEndStream   = 0x02
	headerBytes     = 5
)

// ReadEnvelope reads one enveloped message. It returns io.EOF when the stream ended cleanly before it.
// Memory grows with the bytes that arrive, never with the length that the header claims.
// Errors: an [*Error] for a frame that is compressed, cut off, or longer than [MessageBytesMax].
func ReadEnvelope(r io.Reader) ([]byte, error) {
	var header [headerBytes]byte
	if n, err := io.ReadFull(r, header[:]); err != nil {
		if err == io.EOF {
			return nil, io.EOF
		}
		return nil, Errorf(InvalidArgument, "the message frame was cut off after %d of its 5 header bytes: %v", n, err)
	}
	if header[0]&flagCompressed != 0 {
		return nil, Errorf(Unimplemented, "compressed messages are not accepted; send them with frame flag 0")
	}
	if header[0]&flagEndStream != 0 {
		return nil, io.EOF
	}
	size := int64(binary.BigEndian.Uint32(header[1:]))
	if size > MessageBytesMax {
		return nil, Errorf(ResourceExhausted, "a message of %d bytes is over the limit of %d; send large input in pieces", size, MessageBytesMax)
	}
	return readExactly(r, size)
}

func readExactly(r io.Reader, size int64) ([]byte, error) {
	const firstPiece = 64 << 10
	message := make([]byte, 0, min(size, firstPiece))
	for int64(len(message)) < size {
		if len(message) == cap(message) {
			grown := make([]byte, len(message), min(size, int64(cap(message))*2))
			copy(grown, message)
			message = grown
		}
		n, err := r.Read(message[len(message):min(int64(cap(message)), size)])
		message = message[:len(message)+n]
		if err != nil && int64(len(message)) < size {
			return nil, Errorf(InvalidArgument, "the message was cut off after %d of %d bytes: %v", len(message), size, err)
		}
	}
	return message, nil
}

// AppendEnvelope appends body as one enveloped message to buffer.
func AppendEnvelope(buffer, body []byte) []byte {
	buffer = append(buffer, 0, 0, 0, 0, 0)
	binary.BigEndian.PutUint32(buffer[len(buffer)-4:], uint32(len(body)))
	return append(buffer, body...)
}

// BeginEnvelope appends an empty header; close it with [EndEnvelope] after appending the body.
func BeginEnvelope(buffer []byte) []byte { return append(buffer, 0, 0, 0, 0, 0) }

// EndEnvelope writes the length into the header that begins at offset start.
func EndEnvelope(buffer []byte, start int) []byte {
	binary.BigEndian.PutUint32(buffer[start+1:], uint32(len(buffer)-start-headerBytes))
	return buffer
}

// AppendEndStream appends the last message of a stream: empty when err is nil, otherwise naming it.
func AppendEndStream(buffer []byte, err error) []byte {
	body := []byte("{}")
	if err != nil {
		encoded, _ := json.Marshal(struct {
			Error *Error `json:"error"`
		}{AsError(err)})
		body = encoded
	}
	start := len(buffer)
	buffer = AppendEnvelope(buffer, body)
	buffer[start] = flagEndStream
	return buffer
}
