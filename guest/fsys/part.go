package fsys

import "strings"

// A file that is being written has a name of its own beside its destination, which it takes by a rename at the end. Watchers
// do not show it: to them the rename is the writing of the destination.
const (
	PartOfNew      = ".torpor-upload-new-" // the destination was not there
	PartOfExisting = ".torpor-upload-old-"
	partOfMove     = ".torpor-move-"
)

func isPart(name string) bool {
	return strings.HasPrefix(name, PartOfNew) || strings.HasPrefix(name, PartOfExisting) || strings.HasPrefix(name, partOfMove)
}
