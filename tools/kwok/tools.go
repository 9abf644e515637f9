//go:build tools

// Package kwok pins the kwok controller, which plays the kubelets: tools/build.py builds it from this module.
package kwok

import _ "sigs.k8s.io/kwok/cmd/kwok"
