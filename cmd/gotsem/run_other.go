//go:build !unix

package main

import "errors"

type runCmd struct {
	Args []string `arg:"" optional:"" passthrough:""`
}

func (*runCmd) Run() error {
	return &exitError{exitOwn, errors.New("gotsem run needs signals and process groups, which this system does not have")}
}
