//go:build tools

// Package tools names the program that this module builds, so that `go mod tidy` keeps what it needs.
package tools

import _ "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"
