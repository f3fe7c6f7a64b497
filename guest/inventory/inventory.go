// Package inventory tells what of a sandbox is state, by Torpor's six kinds: files, packages, caches, memory,
// connections, browser. It reads what is there and changes nothing.
package inventory

import (
	"context"
	"time"
)

// Inventory is one look at a sandbox.
type Inventory struct {
	TakenAt     time.Time   `json:"taken_at"`
	Files       Files       `json:"files"`
	Packages    Packages    `json:"packages"`
	Caches      []Cache     `json:"caches"`
	Memory      Memory      `json:"memory"`
	Connections Connections `json:"connections"`
	Browser     Browser     `json:"browser"`
}

// Limits of one look.
const (
	timeLimit    = 5 * time.Second
	entriesMax   = 300_000
	sampleMax    = 100
	processesMax = 200
	listMax      = 500
)

// Take looks at the machine below root ("" is the machine itself). What changed after since counts as changed since
// the template: the agent was started when the template's golden snapshot was baked.
func Take(ctx context.Context, root string, since time.Time) Inventory {
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	home := homes(root)
	return Inventory{
		TakenAt:     time.Now().UTC(),
		Files:       changedFiles(ctx, root, since),
		Packages:    addedPackages(root, home, since),
		Caches:      caches(ctx, root, home),
		Memory:      memory(root),
		Connections: connections(root),
		Browser:     browsers(ctx, root, home),
	}
}
