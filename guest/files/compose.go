package files

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"torpor/guest/fsys"
	"torpor/guest/wire"
)

type composeRequest struct {
	SourcePaths []string `json:"source_paths"`
	Destination string   `json:"destination"`
	Username    string   `json:"username"`
}

// ServeCompose answers E2B's POST /files/compose: the sources, one after the other, become the destination, whole or not at
// all, and are removed. The caller has checked the token.
func (f *Files) ServeCompose(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", "POST")
		WriteError(w, &statusError{http.StatusMethodNotAllowed, "use POST to compose files"})
		return
	}
	done, err := f.compose(r)
	if err != nil {
		WriteError(w, err)
		return
	}
	wire.WriteJSON(w, http.StatusOK, done)
}

func (f *Files) compose(r *http.Request) (*written, error) {
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, wire.MessageBytesMax))
	if err != nil {
		return nil, &statusError{http.StatusBadRequest, "reading the request failed: " + err.Error()}
	}
	var request composeRequest
	if err := wire.Decode(body, &request); err != nil {
		return nil, err
	}
	switch {
	case len(request.SourcePaths) == 0:
		return nil, wire.Errorf(wire.InvalidArgument, "source_paths must not be empty")
	case request.Destination == "":
		return nil, wire.Errorf(wire.InvalidArgument, "destination is required")
	}
	user, err := f.paths.User(request.Username)
	if err != nil {
		return nil, err
	}
	destination, err := f.paths.Resolve(request.Destination, user)
	if err != nil {
		return nil, err
	}
	sources := &concatenation{}
	defer sources.close()
	for _, asked := range request.SourcePaths {
		source, err := f.paths.Resolve(asked, user)
		if err != nil {
			return nil, err
		}
		if source == destination {
			return nil, wire.Errorf(wire.InvalidArgument, "source path %q cannot be the same as destination", asked)
		}
		file, _, err := openRegular(source) // looked at before anything is made
		if err != nil {
			return nil, err
		}
		file.Close()
		sources.paths = append(sources.paths, source)
	}
	all := append([]string(nil), sources.paths...)
	if err := Replace(destination, user, sources, nil); err != nil {
		var cut *bodyError
		if errors.As(err, &cut) {
			return nil, cut.cause
		}
		return nil, err
	}
	for _, source := range all {
		_ = os.Remove(source)
	}
	return &written{Name: filepath.Base(destination), Path: destination, Type: "file"}, nil
}

// concatenation reads files one after the other, with one of them open at a time.
type concatenation struct {
	paths []string // still to come
	file  *os.File
}

func (c *concatenation) Read(p []byte) (int, error) {
	for {
		if c.file == nil {
			if len(c.paths) == 0 {
				return 0, io.EOF
			}
			file, _, err := openRegular(c.paths[0])
			if err != nil {
				return 0, err
			}
			c.file, c.paths = file, c.paths[1:]
		}
		n, err := c.file.Read(p)
		if n > 0 {
			return n, nil
		}
		if err != nil && err != io.EOF {
			return 0, fsys.PathError(err, c.file.Name())
		}
		c.close()
	}
}

func (c *concatenation) close() {
	if c.file != nil {
		c.file.Close()
		c.file = nil
	}
}
