// Package marchv1 has the generated routes that take HTTP requests to a room's and a console's services, and
// the OpenAPI 3 documents that describe them. `make generate` writes all of this folder but
// this file.
package marchv1

import _ "embed"

var (
	// RoomDocument describes a room's HTTP API.
	//
	//go:embed room.openapi.json
	RoomDocument []byte
	// ConsoleDocument describes a console's HTTP API.
	//
	//go:embed console.openapi.json
	ConsoleDocument []byte
)
