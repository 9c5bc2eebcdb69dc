"""Words of commands that write manifests."""

IMAGE = "registry.example/maxqps:1@sha256:" + "0" * 64


HOSTS = "10.0.0.1,10.0.0.2,10.0.0.3"


KUBERAY = ["kuberay", "cluster=mi325x_4n", "--image", IMAGE]


SERVICE = ["--service", "--token-secret", "token", "engine=vllm", "engine.model_path=/weights/qwen"]
