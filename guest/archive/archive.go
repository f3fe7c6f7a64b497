// Package archive carries folders in and out as tar streams: GET and PUT /torpor/archive.
package archive

import (
	"net/http"
	"path/filepath"

	"torpor/guest/account"
	"torpor/guest/files"
	"torpor/guest/fsys"
	"torpor/guest/wire"
)

// Archive serves the route.
type Archive struct{ paths *fsys.Paths }

// New makes the server.
func New(paths *fsys.Paths) *Archive { return &Archive{paths: paths} }

// ServeHTTP answers GET with a tar of query path, and PUT by unpacking the body below it. Query username is whose home
// relative paths start from and who owns what is made; root keeps the owners named in the tar.
func (a *Archive) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	user, err := a.paths.User(query.Get("username"))
	var path string
	if err == nil {
		if query.Get("path") == "" {
			err = wire.Errorf(wire.InvalidArgument, "query parameter path is missing")
		} else {
			path, err = a.paths.Resolve(query.Get("path"), user)
		}
	}
	if err != nil {
		files.WriteError(w, err)
		return
	}
	switch r.Method {
	case http.MethodGet:
		a.send(w, path)
	case http.MethodPut:
		a.receive(w, r, path, user)
	default:
		w.Header().Set("Allow", "GET, PUT")
		http.Error(w, "use GET to read and PUT to write a folder", http.StatusMethodNotAllowed)
	}
}

func (a *Archive) send(w http.ResponseWriter, path string) {
	p, err := newPacker(path, a.paths.Accounts)
	if err != nil {
		files.WriteError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-tar")
	if err := p.pack(w); err != nil {
		// The status is out already: only a broken connection tells the receiver that the tar is not whole.
		panic(http.ErrAbortHandler)
	}
}

type received struct {
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`
}

func (a *Archive) receive(w http.ResponseWriter, r *http.Request, path string, user *account.User) {
	done, err := a.unpack(r, path, user)
	if err == nil {
		wire.WriteJSON(w, http.StatusOK, done)
		return
	}
	status := files.Status(err)
	wire.WriteJSON(w, status, map[string]any{"code": status, "message": err.Error(), "written": done})
}

func (a *Archive) unpack(r *http.Request, path string, user *account.User) (received, error) {
	body, err := files.Decoded(r)
	if err != nil {
		return received{}, err
	}
	if err := fsys.MakeParents(filepath.Join(path, "x"), user); err != nil {
		return received{}, err
	}
	u, err := newUnpacker(path, user)
	if err != nil {
		return received{}, err
	}
	defer u.close()
	err = u.unpack(body)
	return u.done, err
}
