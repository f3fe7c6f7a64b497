package files

import (
	"compress/gzip"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"path/filepath"
	"strings"

	"torpor/guest/account"
	"torpor/guest/fsys"
	"torpor/guest/wire"
)

// written is one entry of an upload's answer.
type written struct {
	Name     string            `json:"name"`
	Path     string            `json:"path"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// filesMax bounds how many files one multipart request may carry.
const filesMax = 10_000

func (f *Files) upload(w http.ResponseWriter, r *http.Request) error {
	user, err := f.user(r)
	if err != nil {
		return err
	}
	metadata := requestMetadata(r.Header)
	if err := fsys.CheckMetadata(metadata); err != nil {
		return err
	}
	body, err := Decoded(r)
	if err != nil {
		return err
	}
	contentType, parameters, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return &statusError{http.StatusBadRequest, "header Content-Type is missing or malformed; send multipart/form-data or application/octet-stream"}
	}
	path := r.URL.Query().Get("path")
	var done []written
	switch contentType {
	case "application/octet-stream":
		if path == "" {
			return wire.Errorf(wire.InvalidArgument, "query parameter path is required with application/octet-stream")
		}
		var one written
		one, err = f.store(path, user, body, metadata)
		done = []written{one}
	case "multipart/form-data":
		done, err = f.storeParts(multipart.NewReader(body, parameters["boundary"]), path, user, metadata)
	default:
		return &statusError{http.StatusBadRequest, "content type " + contentType + " is not accepted; send multipart/form-data or application/octet-stream"}
	}
	if err != nil {
		return err
	}
	wire.WriteJSON(w, http.StatusOK, done)
	return nil
}

// Decoded is a request's body without its Content-Encoding, which may be gzip.
func Decoded(r *http.Request) (io.Reader, error) {
	switch encoding := strings.ToLower(strings.TrimSpace(r.Header.Get("Content-Encoding"))); encoding {
	case "", "identity":
		return r.Body, nil
	case "gzip":
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, &statusError{http.StatusBadRequest, "the body is not the gzip that Content-Encoding says: " + err.Error()}
		}
		return z, nil
	default:
		return nil, &statusError{http.StatusUnsupportedMediaType, "content encoding " + encoding + " is not accepted; send gzip or none"}
	}
}

func requestMetadata(h http.Header) map[string]string {
	var metadata map[string]string
	for name, values := range h {
		if key, ok := strings.CutPrefix(strings.ToLower(name), "x-metadata-"); ok && len(values) > 0 {
			if metadata == nil {
				metadata = map[string]string{}
			}
			metadata[key] = values[0]
		}
	}
	return metadata
}

func (f *Files) storeParts(parts *multipart.Reader, path string, user *account.User, metadata map[string]string) ([]written, error) {
	done := []written{}
	for {
		part, err := parts.NextRawPart()
		if err == io.EOF {
			return done, nil
		}
		if err != nil {
			return nil, &statusError{http.StatusBadRequest, "the multipart body is broken or was cut off: " + err.Error()}
		}
		if part.FormName() != "file" {
			continue
		}
		// Part.FileName strips folders, which clients put there on purpose.
		_, parameters, _ := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
		to := parameters["filename"]
		if path != "" {
			if len(done) > 0 {
				return nil, wire.Errorf(wire.InvalidArgument, "query parameter path names one file, but the body holds several; leave path out")
			}
			to = path
		}
		if to == "" {
			return nil, wire.Errorf(wire.InvalidArgument, "a part has no filename and the query has no path")
		}
		if len(done) >= filesMax {
			return nil, wire.Errorf(wire.InvalidArgument, "more than %d files in one request", filesMax)
		}
		one, err := f.store(to, user, part, metadata)
		if err != nil {
			return nil, err
		}
		for _, earlier := range done {
			if earlier.Path == one.Path {
				return nil, wire.Errorf(wire.InvalidArgument, "the path '%s' appears more than once in the request", one.Path)
			}
		}
		done = append(done, one)
	}
}

func (f *Files) store(asked string, user *account.User, body io.Reader, metadata map[string]string) (written, error) {
	path, err := f.paths.Resolve(asked, user)
	if err != nil {
		return written{}, err
	}
	if strings.HasSuffix(asked, "/") {
		return written{}, wire.Errorf(wire.InvalidArgument, "path '%s' ends in a slash: it names a directory", asked)
	}
	if err := Replace(path, user, body, metadata); err != nil {
		var cut *bodyError
		if errors.As(err, &cut) {
			return written{}, &statusError{http.StatusBadRequest, "the upload of '" + path + "' was cut off or broken: " + cut.Error() + "; the earlier file, if any, is unchanged"}
		}
		return written{}, err
	}
	return written{Name: filepath.Base(path), Path: path, Type: "file", Metadata: metadata}, nil
}
