//go:build tools

// Package helm pins the Helm command line: tools/build.py builds it from this module.
package helm

import _ "helm.sh/helm/v4/cmd/helm"
