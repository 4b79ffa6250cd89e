# shellcheck shell=bash
# Which tools a release is made and checked with. Go's proxy has them all.
# shellcheck disable=SC2034 # for those who source it
GORELEASER=github.com/goreleaser/goreleaser/v2@v2.17.0 # the newest that Go 1.26 builds
CYCLONEDX=github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0
ACTIONLINT=github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
COMPOSE=github.com/compose-spec/compose-go/v2/cmd@v2.16.2
KUSTOMIZE=sigs.k8s.io/kustomize/kustomize/v5@v5.7.1 # newer ones want a newer Go
KUBECTL_VALIDATE=sigs.k8s.io/kubectl-validate@v0.0.4
PROMETHEUS_OPERATOR=github.com/prometheus-operator/prometheus-operator@v0.85.0 # its CRDs
