package fsys

import (
	"errors"
	"strings"
	"syscall"

	"torpor/guest/wire"
)

const (
	metadataPrefix = "user.e2b."
	// MetadataBytesMax bounds a file's metadata, values and names with their prefix together (E2B's figure).
	MetadataBytesMax = 4096
)

// ReadMetadata gives a file's metadata: its extended attributes user.e2b.*; nil when there is none or the file system has none.
func ReadMetadata(path string) map[string]string {
	list := make([]byte, 64<<10)
	n, err := syscall.Listxattr(path, list)
	if err != nil || n <= 0 {
		return nil
	}
	var metadata map[string]string
	for _, name := range strings.Split(strings.TrimRight(string(list[:n]), "\x00"), "\x00") {
		key, ok := strings.CutPrefix(name, metadataPrefix)
		if !ok {
			continue
		}
		value := make([]byte, MetadataBytesMax)
		size, err := syscall.Getxattr(path, name, value)
		if err != nil {
			continue
		}
		if metadata == nil {
			metadata = map[string]string{}
		}
		metadata[key] = string(value[:size])
	}
	return metadata
}

// CheckMetadata says whether metadata can be stored. Errors: invalid_argument.
func CheckMetadata(metadata map[string]string) error {
	size := 0
	for key, value := range metadata {
		size += len(metadataPrefix) + len(key) + len(value)
		if key == "" || len(metadataPrefix)+len(key) > 255 {
			return wire.Errorf(wire.InvalidArgument, "the metadata name %q is empty or longer than %d bytes", key, 255-len(metadataPrefix))
		}
	}
	for key, value := range metadata {
		if !isPrintable(key) || !isPrintable(value) {
			return wire.Errorf(wire.InvalidArgument, "the metadata %q holds a character that is not printable ASCII", key)
		}
	}
	if size > MetadataBytesMax {
		return wire.Errorf(wire.InvalidArgument, "the metadata has %d bytes; at most %d can be stored", size, MetadataBytesMax)
	}
	return nil
}

func isPrintable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < 0x20 || r > 0x7e })
}

// WriteMetadata stores metadata on a file that has none yet.
func WriteMetadata(path string, metadata map[string]string) error {
	for key, value := range metadata {
		if err := syscall.Setxattr(path, metadataPrefix+key, []byte(value), 0); err != nil {
			if errors.Is(err, syscall.ENOTSUP) {
				return wire.Errorf(wire.FailedPrecondition, "the file system of '%s' stores no metadata", path)
			}
			return PathError(err, path)
		}
	}
	return nil
}
