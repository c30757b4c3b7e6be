variable "name" {
  description = "Whom to greet."
  type        = string
  default     = "world"
}

variable "guests" {
  description = "Who gets a letter."
  type        = list(string)
  default     = ["Ada", "Grace"]
}

variable "password" {
  description = "Shows that a sensitive value stays hidden."
  type        = string
  default     = "open sesame"
  sensitive   = true
}
