// Zip writes the tree of a folder as a zip file: zip FOLDER FILE. The same tree makes the
// same bytes on any host: files come in the order of their names, with the times and modes
// that they have. Times are in UTC where TZ says so.
package main

import (
	"archive/zip"
	"errors"
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: zip FOLDER FILE")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "zip:", err)
		os.Exit(1)
	}
}

func write(folder, file string) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := zip.NewWriter(f)
	if err := w.AddFS(os.DirFS(folder)); err != nil {
		return err
	}
	return w.Close()
}
