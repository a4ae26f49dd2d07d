"""The wire over gRPC. It needs the extra ``llmsession[grpc]``."""
