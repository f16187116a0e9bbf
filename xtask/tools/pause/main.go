// The two chores of a node that need a program inside an image: holding a pod's namespaces open (no
// arguments), and emptying a released volume (`wipe FOLDER`). Nothing here talks to the network.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "wipe" {
		if err := wipe(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	hold()
}

// wipe removes what is in the folder and leaves the folder, whose mode lets any user write to it.
func wipe(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(folder, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// hold reaps the pod's orphans, since it is process 1 where containers share a process namespace.
func hold() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		for {
			if pid, _ := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 {
				break
			}
		}
	}
}
