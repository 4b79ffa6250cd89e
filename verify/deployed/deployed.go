// Package deployed judges what is in the folder deploy: its tests ask the real promtool,
// Prometheus and jsonnet.
package deployed
