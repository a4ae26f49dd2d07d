"""The wire protocol over gRPC. It needs the extra ``llmsession[grpc]``."""
