# The image of March: the program of `make dist` without march dev, root certificates, and nothing else.
# `make image` builds it. The build's folder has march-ARCH for each architecture, the
# certificates as ca-certificates.crt, and the empty folder state.
FROM scratch
ARG TARGETARCH
COPY --chmod=0755 march-${TARGETARCH} /usr/bin/march
COPY --chmod=0644 ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
# Journals: mount a volume here. All else may be read-only.
COPY --chown=65532:65532 state /var/lib/march
ENV STATE_DIRECTORY=/var/lib/march
# A number, so that Kubernetes sees that it is not root.
USER 65532:65532
ENTRYPOINT ["/usr/bin/march"]
