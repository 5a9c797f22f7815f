// Package chart tests the Helm chart in deploy/helm/march, in a module of its own, because
// Helm and the types of Kubernetes are large. It renders the chart with Helm's own packages:
// with the values of each file in testdata, the objects are those of the golden file beside
// it, decode strictly into the types of Kubernetes, and fit each other, and the program
// accepts their arguments and settings.
//
//	go test . -update	writes the golden files
package chart
