// Package marchv1 has the generated routes that take HTTP requests to a room's and a console's services, and
// the OpenAPI documents that describe them. `make generate` writes all of this folder but
// this file.
package marchv1

import _ "embed"

var (
	// RoomDocument describes a room's HTTP API.
	//
	//go:embed room.swagger.json
	RoomDocument []byte
	// ConsoleDocument describes a console's HTTP API.
	//
	//go:embed console.swagger.json
	ConsoleDocument []byte
)
